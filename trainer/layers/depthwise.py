from typing import Any

import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.declared_flops import counted_products
from trainer.layers.positions import Positions
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue

_FEATURES = {1: ('norm',), 2: ('heads', 'kv')}
"""The logical axes of a kernel's features: of the model, or of attention heads."""

_ACTIVATIONS = {1: ('features',), 2: ('heads', 'kv')}


class DepthwiseConv1D(Layer):
    """Causal convolution of each feature along positions: [B, T, D] or [B, T, N, H] -> same.

    y[t] = kernel[0] * x[t] + … + kernel[width - 1] * x[t - width + 1], where x is 0 before the
    segment of t. So et al. 2021 ("Primer") apply it after the projections of attention.

    A new layer is the identity: its first tap is 1 and the others are 0. Weight decay does not
    apply to the taps, as it would pull the layer to zero.

    Attributes:
        width: positions that each result depends on, itself included.
    """

    width: int = 3

    usual = {'width': UsualValue(4, 3, 5, '4: Mamba, Griffin; 3: Primer (So et al. 2021)')}

    def check(self) -> None:
        require_positive(self, 'width')

    def forward(self, x: jax.Array, positions: Positions | None = None) -> jax.Array:
        features = x.shape[2:]
        if len(features) not in _FEATURES:
            raise UserError(
                f'{self.sym_path}: a sequence is [B, T, D], or [B, T, N, H] in heads, not {x.shape}'
            )
        if positions is None:
            positions = Positions.unpacked(x.shape[:2])
        shape, axes = (self.width, *features), (None, *_FEATURES[len(features)])

        def identity(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
            return jnp.zeros(shape, dtype).at[0].set(1)

        kernel = self.param('kernel', shape, axes, identity, decay=False)
        at_positions = ('batch', 'length', *_ACTIVATIONS[len(features)])
        cached = None if self.cache_length is None else self._after_cached(x, positions)
        with counted_products():
            y = kernel[0] * x
            for back in range(1, self.width):
                if cached is not None:
                    begin = self.width - 1 - back
                    y += kernel[back] * cached[:, begin : begin + x.shape[1]]
                else:
                    y += kernel[back] * _shifted(x, back, positions.segment_BT)
        return self.constrain(y, at_positions)

    def _after_cached(self, x: jax.Array, positions: Positions) -> jax.Array:
        """`x` after the `width - 1` inputs before it; those before the next position are cached."""
        count = self.width - 1
        shape = (len(x), count, *x.shape[2:])
        x = jnp.concatenate([self.cached('inputs', shape, x.dtype), x], axis=1)
        tokens_B1 = jnp.sum(positions.is_token_BT, axis=1, keepdims=True)
        at = jnp.expand_dims(tokens_B1 + jnp.arange(count), tuple(range(2, x.ndim)))
        self.set_cached('inputs', jnp.take_along_axis(x, at, axis=1))
        return x


def _shifted(x: jax.Array, back: int, segment_BT: jax.Array | None) -> jax.Array:
    """The values `back` positions earlier in the same segment; 0 where there are none."""
    earlier = _behind(x, back)
    if segment_BT is None:
        return earlier
    return _where(segment_BT == _behind(segment_BT, back), earlier)


def _behind(x: jax.Array, back: int) -> jax.Array:
    filling = [(0, 0)] * x.ndim
    filling[1] = (back, 0)
    return jnp.pad(x, filling)[:, : x.shape[1]]


def _where(holds_BT: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(jnp.expand_dims(holds_BT, tuple(range(2, x.ndim))), x, 0)
