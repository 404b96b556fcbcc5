"""Calls of layers of users: the arguments that they take, and the results that they must make."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from trainer.layers.base import CACHE, Layer, current_frame
from trainer.symbolic.errors import UserError


def accepts(layer: Layer, *args: Any) -> bool:
    """True if the `forward` of a layer takes these arguments."""
    try:
        inspect.signature(layer.forward).bind(*args)
    except TypeError:
        return False
    return True


def taken(layer: Layer, x: jax.Array, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments beside x that a layer gets; none where its `forward` takes x alone."""
    return args if accepts(layer, x, *args) else ()


def apply_branch(layer: Layer, x: jax.Array, *args: Any) -> jax.Array:
    """Calls a layer of the running layer, whose result is added to its input.

    Args:
        args: positions and the like; left out for a layer whose `forward` takes x alone.

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
