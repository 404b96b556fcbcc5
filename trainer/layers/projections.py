from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax.linen import initializers
from jax.ad_checkpoint import checkpoint_name

from trainer.layers.base import Layer
from trainer.layers.initialization import Bias, Initializer, kernel_init

Projection = Literal['query', 'key', 'value', 'output']


def to_heads(
    layer: Layer,
    name: str,
    x_BTD: jax.Array,
    heads: int,
    size: int,
    init: Initializer | None = None,
    bias: Bias = 'none',
) -> jax.Array:
    """Projects features to heads: [B, T, D] -> [B, T, heads, size].

    The kernel is the parameter `name` of `layer`, drawn by `init`.
    """
    shape = (x_BTD.shape[-1], heads, size)
    drawn = kernel_init(init, in_axis=0, out_axis=(1, 2))
    kernel = layer.param(name, shape, ('embed', 'heads', 'kv'), drawn)
    return _biased_heads(layer, name, layer.product('btd,dnh->btnh', x_BTD, kernel), bias)


def to_combined_heads(
    layer: Layer,
    x_BTD: jax.Array,
    heads: tuple[int, int],
    size: int,
    init: Initializer | None,
    bias_of: Callable[[Projection], Bias],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Projects features to queries, keys and values by one product with the parameter `qkv`.

    The kernel is [N / K + 2, D, K, size]: the first, second, … query of each key, keys, values.
    Each of them is drawn and optimized as a kernel of its own, and devices share the heads K.

    Args:
        heads: of queries, N, and of keys, K.
        bias_of: the bias of a projection.
    """
    num_heads, kv_heads = heads
    shared = num_heads // kv_heads
    shape = (shared + 2, x_BTD.shape[-1], kv_heads, size)
    drawn = kernel_init(init, in_axis=1, out_axis=(2, 3), batch_axis=0)
    kernel = layer.param('qkv', shape, (None, 'embed', 'heads', 'kv'), drawn)
    y_BTCKH = layer.product('btd,cdkh->btckh', x_BTD, kernel)
    y_BTCKH = layer.constrain(y_BTCKH, ('batch', 'length', None, 'heads', 'kv'))
    q_BTKGH = jnp.swapaxes(y_BTCKH[:, :, :shared], 2, 3)
    q_BTNH = q_BTKGH.reshape(*x_BTD.shape[:2], num_heads, size)
    return (
        _biased_heads(layer, 'query', q_BTNH, bias_of('query')),
        _biased_heads(layer, 'key', y_BTCKH[:, :, shared], bias_of('key')),
        _biased_heads(layer, 'value', y_BTCKH[:, :, shared + 1], bias_of('value')),
    )


def _biased_heads(layer: Layer, name: str, y_BTNH: jax.Array, bias: Bias) -> jax.Array:
    if bias != 'none':
        y_BTNH += layer.param(
            f'{name}_bias', y_BTNH.shape[2:], ('heads', 'kv'), initializers.zeros, decay=False
        )
    return checkpoint_name(layer.constrain(y_BTNH, ('batch', 'length', 'heads', 'kv')), name)


def from_heads(
    layer: Layer,
    out_BTNH: jax.Array,
    dims: int,
    init: Initializer | None = None,
    bias: Bias = 'none',
) -> jax.Array:
    """Projects heads to features: [B, T, N, H] -> [B, T, dims], by the parameter `output`."""
    shape = (*out_BTNH.shape[-2:], dims)
    drawn = kernel_init(init, in_axis=(0, 1), out_axis=2)
    kernel = layer.param('output', shape, ('heads', 'kv', 'embed'), drawn)
    out_BTNH = checkpoint_name(out_BTNH, 'context')
    x_BTD = layer.product('btnh,nhd->btd', out_BTNH, kernel)
    if bias != 'none':
        x_BTD += layer.param('output_bias', (dims,), ('norm',), initializers.zeros, decay=False)
    x_BTD = layer.constrain(x_BTD, ('batch', 'length', 'features'))
    return checkpoint_name(x_BTD, 'output')
