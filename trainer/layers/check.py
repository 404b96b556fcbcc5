import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trainer.layers.base import PARAMS, ForwardContext, Layer, forward_context
from trainer.layers.positions import Positions
from trainer.symbolic.errors import UserError


def check_mixer(layer: Layer, x_BTD: jax.Array, tolerance: float = 1e-4) -> None:
    """Raises UserError unless a layer keeps the contract of a mixer in `TransformerBlock`.

    The result has the shape and the dtype of x. It depends on no other example, on no other
    segment, and on no later position unless the layer says `mask = 'full'`. Each parameter has a
    gradient. `trainer.decoding.check_decoding` tests decoding.

    Args:
        layer: takes `(x, positions)`.
        x_BTD: at least 2 examples of at least 4 positions, all of them different.
        tolerance: largest difference, relative to the largest result.

    Example:
        >>> from trainer.layers import Attention
        >>> check_mixer(Attention(2), jax.random.normal(jax.random.key(0), (2, 6, 8)))
    """
    where, module = str(layer.sym_path) or type(layer).__name__, layer.module()
    whole = Positions.unpacked(x_BTD.shape[:2])
    variables = _with_noise(nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), x_BTD, whole)))

    @jax.jit
    def run(x_BTD: jax.Array, positions: Positions) -> Any:
        return module.apply(variables, x_BTD, positions)

    y_BTD = run(x_BTD, whole)
    _require(y_BTD.shape == x_BTD.shape, f'{where}: {x_BTD.shape} became {y_BTD.shape}')
    bound = tolerance * float(jnp.max(jnp.abs(y_BTD)))

    def same(one: jax.Array, other: jax.Array) -> bool:
        return bool(jnp.max(jnp.abs(one - other)) <= bound)

    alone = same(run(x_BTD[:1], Positions.unpacked((1, x_BTD.shape[1]))), y_BTD[:1])
    _require(alone, f'{where}: an example depends on the others of its batch')
    last = x_BTD.shape[1] // 2
    if getattr(layer, 'mask', 'causal') == 'causal':
        changed = run(x_BTD.at[:, last:].set(-x_BTD[:, last:]), whole)
        message = "a position depends on later ones. If it should, set mask = 'full'"
        _require(same(changed[:, :last], y_BTD[:, :last]), f'{where}: {message}')
    segment_BT = 1 + (whole.index_BT >= last).astype(jnp.int32)
    packed = run(x_BTD, Positions.packed(segment_BT))
    each = (x_BTD[:, :last], x_BTD[:, last:])
    apart = jnp.concatenate([run(x, Positions.unpacked(x.shape[:2])) for x in each], axis=1)
    message = 'segments of a packed row see each other (`positions.segment_BT`, `begins_BT`)'
    _require(same(packed, apart), f'{where}: {message}')
    _check_gradients(where, module, variables, x_BTD, whole)


def _with_noise(variables: Any) -> Any:
    """Adds noise to parameters, since one that starts at zero would hide a mistake."""
    noise = functools.partial(jax.random.normal, jax.random.key(1))
    params = jax.tree.map(lambda x: x + 0.1 * noise(x.shape, x.dtype), variables.get(PARAMS, {}))
    return {**variables, PARAMS: params}


def _check_gradients(where: str, module: Any, variables: Any, x: jax.Array, whole: Any) -> None:
    def loss(params: Any) -> jax.Array:
        y: Any = module.apply({**variables, PARAMS: params}, x, whole)
        return jnp.sum(jnp.square(y))

    with forward_context(ForwardContext(dtype=jnp.bfloat16)):
        narrow: Any = jax.eval_shape(module.apply, variables, x.astype(jnp.bfloat16), whole)
    _require(narrow.dtype == jnp.bfloat16, f'{where}: bfloat16 became {narrow.dtype}')
    gradients = jax.jit(jax.grad(loss))(variables.get(PARAMS, {}))
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        name = '.'.join(str(part.key) for part in path)
        _require(
            bool(jnp.isfinite(gradient).all()), f'{where}: the gradient of {name} is not finite'
        )
        _require(bool((gradient != 0).any()), f'{where}: {name} has no gradient')


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)
