import jax
from flax.linen import initializers

from trainer.layers.base import Layer
from trainer.layers.initialization import Bias, Initializer, kernel_init


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
    y_BTNH = layer.product('btd,dnh->btnh', x_BTD, kernel)
    if bias != 'none':
        y_BTNH += layer.param(
            f'{name}_bias', shape[1:], ('heads', 'kv'), initializers.zeros, decay=False
        )
    return layer.constrain(y_BTNH, ('batch', 'length', 'heads', 'kv'))


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
    x_BTD = layer.product('btnh,nhd->btd', out_BTNH, kernel)
    if bias != 'none':
        x_BTD += layer.param('output_bias', (dims,), ('norm',), initializers.zeros, decay=False)
    return layer.constrain(x_BTD, ('batch', 'length', 'features'))
