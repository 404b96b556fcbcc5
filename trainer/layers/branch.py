"""Calls of layers of users: the arguments that they take, and the results that they must make."""

import contextlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from trainer.layers.base import CACHE, Layer, current_frame
from trainer.layers.positions import Positions
from trainer.symbolic.errors import UserError


def takes_positions(layer: Layer) -> bool:
    """True if the second parameter of the `forward` of a layer is `positions`, or `*args`.

    Raises:
        UserError: `positions` stands elsewhere, so that no caller would pass them.
    """
    parameters = [*inspect.signature(layer.forward).parameters.values()]
    places = [at for at, each in enumerate(parameters) if each.name == 'positions']
    if not places:
        return any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters[:2])
    if places != [1] or parameters[1].kind is inspect.Parameter.KEYWORD_ONLY:
        raise UserError(
            f'{layer.sym_path} ({type(layer).__name__}): `positions` must be the second parameter '
            'of forward(self, x, positions=None), which may be passed by its place'
        )
    return True


def taken(layer: Layer, x: jax.Array, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments beside x that a layer gets, as many as its `forward` takes.

    Positions go only to a parameter of that name.
    """
    if args and isinstance(args[0], Positions | None) and not takes_positions(layer):
        args = ()
    signature = inspect.signature(layer.forward)
    for count in range(len(args), -1, -1):
        with contextlib.suppress(TypeError):
            signature.bind(x, *args[:count])
            return args[:count]
    raise UserError(
        f'{layer.sym_path} ({type(layer).__name__}): it is called with activations, and with '
        f'positions where forward(self, x, positions) names them; it has forward{signature}'
    )


def apply_branch(layer: Layer, x: jax.Array, *args: Any) -> jax.Array:
    """Calls a layer of the running layer, whose result is added to its input.

    Args:
        args: positions and the like; `taken` says which of them the layer gets.

    Raises:
        UserError: the result is not like x, or decoding needs a cache that the layer lacks.
    """
    y: jax.Array = layer(x, *taken(layer, x, args))
    require_like(layer, x, y)
    if layer.cache_length is not None and not layer.is_pointwise:
        cached: Any = current_frame().module.variables.get(CACHE, {})
        if not cached.get(layer.scope_name()):
            raise UserError(
                f'{layer.sym_path} ({type(layer).__name__}): it cannot decode token by token, '
                'since it caches nothing (`cached`, `set_cached`). If it computes each position '
                'by itself, set is_pointwise = True in its class'
            )
    return y


def require_like(layer: Layer, x: jax.Array, y: jax.Array) -> None:
    """Raises UserError if the result `y` of a layer differs from its input in shape or dtype."""
    where = f'{layer.sym_path} ({type(layer).__name__})'
    if y.shape != x.shape:
        raise UserError(
            f'{where}: it makes {list(y.shape)} of {list(x.shape)}. A layer with a residual '
            'connection, or in a scanned stack, keeps the shape'
        )
    if jnp.result_type(x, y) != x.dtype:
        raise UserError(
            f'{where}: it makes {y.dtype} of {x.dtype}, which all later layers would compute in. '
            'Return y.astype(x.dtype)'
        )
