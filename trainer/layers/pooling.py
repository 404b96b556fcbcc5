from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.convolution import Padding, require_pairs


class Pool2D(Layer):
    """The maximum or the mean of each window: [B, H, W, C] -> [B, H', W', C].

    Pixels outside the image do not count.

    Attributes:
        kind: 'max' or 'average'.
        window: its height and width, in pixels.
        strides: steps of the window downwards and to the right, in pixels.
        padding: 'VALID' stays inside the image, 'SAME' reaches over its edges.
    """

    kind: Literal['max', 'average'] = 'max'
    window: list[int] = [2, 2]
    strides: list[int] = [2, 2]
    padding: Padding = 'VALID'

    def check(self) -> None:
        require_pairs(self, 'window', 'strides')

    def forward(self, x_BHWC: jax.Array) -> jax.Array:
        window, strides = tuple(self.window), tuple(self.strides)
        if self.kind == 'max':
            return nn.max_pool(x_BHWC, window, strides, self.padding)
        wide = x_BHWC.astype(jnp.float32)
        mean = nn.avg_pool(wide, window, strides, self.padding, count_include_pad=False)
        return mean.astype(x_BHWC.dtype)


class GlobalPool(Layer):
    """The mean or the maximum of each channel: [B, H, W, C] -> [B, C].

    Attributes:
        kind: 'average' or 'max'.
    """

    kind: Literal['average', 'max'] = 'average'

    def forward(self, x_BHWC: jax.Array) -> jax.Array:
        if self.kind == 'max':
            return jnp.max(x_BHWC, axis=(1, 2))
        return jnp.mean(x_BHWC, axis=(1, 2), dtype=jnp.float32).astype(x_BHWC.dtype)
