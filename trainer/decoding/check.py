from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trainer.layers.base import CACHE, ForwardContext, Layer, forward_context
from trainer.layers.positions import Positions
from trainer.symbolic.errors import UserError

_NOISE = 0.1


def check_decoding(
    layer: Layer, x_BT: jax.Array, lengths: Sequence[int], tolerance: float = 1e-4
) -> None:
    """Raises UserError unless a layer decodes padded prompts as it computes whole sequences.

    New parameters get noise, since a parameter that starts at zero would hide a mistake.

    Example:
        >>> from trainer.layers import Attention
        >>> check_decoding(Attention(2), jnp.ones((2, 5, 8)), lengths=[1, 3])

    Args:
        layer: takes `(x, positions)`: a layer of [B, T, D], or a model of ids [B, T].
        x_BT: whole sequences.
        lengths: number of tokens in the prompt of each sequence. The rest is decoded token by
            token: as many tokens as follow the longest prompt.
        tolerance: largest difference, relative to the largest result.
    """
    lengths_B, longest = jnp.array(lengths), max(lengths)
    positions = Positions.unpacked(x_BT.shape[:2])
    module = layer.module()
    variables = _with_noise(nn.meta.unbox(module.init(jax.random.key(0), x_BT, positions)))
    whole_BT = module.apply(variables, x_BT, positions)
    assert isinstance(whole_BT, jax.Array)
    context = ForwardContext(cache_length=x_BT.shape[1])

    @jax.jit
    def extend(cache: Any, x_BT: jax.Array, positions: Positions) -> tuple[jax.Array, Any]:
        with forward_context(context):
            out_BT, left = module.apply({**variables, **cache}, x_BT, positions, mutable=[CACHE])
        return out_BT, left

    # Reversed sequences are padding that no prompt continues with.
    is_token_BT = jnp.arange(x_BT.shape[1]) < lengths_B[:, None]
    padded_BT = jnp.where(_like(is_token_BT, x_BT), x_BT, x_BT[:, ::-1])[:, :longest]
    prompts = Positions.unpacked(padded_BT.shape[:2])._replace(lengths_B=lengths_B)
    out_BT, cache = extend({}, padded_BT, prompts)
    apart_BT = jnp.where(prompts.is_token_BT, _apart(out_BT, whole_BT[:, :longest]), 0)
    _require_equal(layer, apart_BT, whole_BT, tolerance, 'the pass over the prompts')
    for step in range(x_BT.shape[1] - longest):
        rows_B1, at_B1 = jnp.arange(len(lengths_B))[:, None], lengths_B[:, None] + step
        out_BT, cache = extend(cache, x_BT[rows_B1, at_B1], Positions(at_B1))
        apart_BT = _apart(out_BT, whole_BT[rows_B1, at_B1])
        _require_equal(layer, apart_BT, whole_BT, tolerance, f'token {step + 1} after the prompts')


def _with_noise(variables: Any) -> Any:
    leaves, tree = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(1), max(len(leaves), 1))
    noisy = [
        leaf + _NOISE * jax.random.normal(key, leaf.shape, leaf.dtype)
        for leaf, key in zip(leaves, keys, strict=False)
    ]
    return jax.tree.unflatten(tree, noisy)


def _like(holds_BT: jax.Array, x_BT: jax.Array) -> jax.Array:
    return jnp.expand_dims(holds_BT, tuple(range(2, x_BT.ndim)))


def _apart(one_BT: jax.Array, other_BT: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(one_BT - other_BT), axis=tuple(range(2, one_BT.ndim)))


def _require_equal(
    layer: Layer, apart_BT: jax.Array, whole_BT: jax.Array, tolerance: float, where: str
) -> None:
    apart_B = jnp.max(apart_BT, axis=1)
    row, apart = int(jnp.argmax(apart_B)), float(jnp.max(apart_B))
    if not apart <= tolerance * float(jnp.max(jnp.abs(whole_BT))):
        raise UserError(
            f'{str(layer.sym_path) or type(layer).__name__}: {where} differs in row {row} by '
            f'{apart:.2g} from a pass over the whole sequence. A layer with a state must stop at '
            '`positions.lengths_B`, and cache the state after that token'
        )
