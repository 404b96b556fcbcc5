from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.convolution import Padding, require_pairs
from trainer.layers.positions import Positions
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import UserError


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
        if x_BHWC.ndim != 4:
            raise UserError(
                f'{self.sym_path}: GlobalPool takes images [B, H, W, C], not {list(x_BHWC.shape)}. '
                'For sequences [B, T, D] use SequencePool, which knows padding'
            )
        if self.kind == 'max':
            return jnp.max(x_BHWC, axis=(1, 2))
        return jnp.mean(x_BHWC, axis=(1, 2), dtype=jnp.float32).astype(x_BHWC.dtype)


class SequencePool(Layer):
    """One vector of the tokens of each sequence: [B, T, D] -> [B, D]. Padding does not count.

    A sequence without tokens has the vector 0.

    Attributes:
        kind: 'average' or 'max' of each feature, or the 'first' or 'last' token.
        num_segments: pools each of the segments 1 to `num_segments` of packed rows,
            [B, num_segments, D]; None pools whole rows.
    """

    kind: Literal['average', 'max', 'first', 'last'] = 'average'
    num_segments: int | None = None

    def check(self) -> None:
        require_positive(self, 'num_segments')

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        positions = positions or Positions.unpacked(x_BTD.shape[:2])
        is_token_BT, segment_BT = positions.is_token_BT, positions.segment_BT
        within_BST = is_token_BT[:, None]
        if self.num_segments is not None:
            segment_BT = jnp.ones_like(positions.index_BT) if segment_BT is None else segment_BT
            number_S1 = jnp.arange(1, self.num_segments + 1)[:, None]
            within_BST = within_BST & (segment_BT[:, None] == number_S1)
        # Padding may hold NaN, which a weight of 0 would not remove.
        x_BTD = jnp.where(is_token_BT[..., None], x_BTD, 0)
        y_BSD = self._pooled(x_BTD, within_BST)
        return y_BSD[:, 0] if self.num_segments is None else y_BSD

    def _pooled(self, x_BTD: jax.Array, within_BST: jax.Array) -> jax.Array:
        if self.kind == 'average':
            count_BS1 = jnp.sum(within_BST, axis=2, keepdims=True)
            weight_BST = within_BST / jnp.maximum(count_BS1, 1).astype(jnp.float32)
            mean_BSD = jnp.einsum('bst,btd->bsd', weight_BST, x_BTD.astype(jnp.float32))
            return mean_BSD.astype(x_BTD.dtype)
        if self.kind == 'max':
            each_BSTD = jnp.where(within_BST[..., None], x_BTD[:, None], -jnp.inf)
            y_BSD = jnp.max(each_BSTD, axis=2).astype(x_BTD.dtype)
        else:
            length = x_BTD.shape[1]
            ordered_BST = within_BST if self.kind == 'first' else within_BST[..., ::-1]
            at_BS = jnp.argmax(ordered_BST, axis=2)
            at_BS = at_BS if self.kind == 'first' else length - 1 - at_BS
            y_BSD = jnp.take_along_axis(x_BTD, at_BS[..., None], axis=1)
        return jnp.where(jnp.any(within_BST, axis=2)[..., None], y_BSD, 0)
