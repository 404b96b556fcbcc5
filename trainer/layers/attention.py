"""Multi-head attention."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.component import require_positive
from trainer.errors import UserError
from trainer.layers.base import Layer
from trainer.layers.positions import Positions


class Attention(Layer):
    """Grouped-query self-attention: [B, T, D] -> [B, T, D].

    Vaswani et al. 2017; Ainslie et al. 2023 (grouped queries); Su et al. 2021 (rotary positions).

    Attributes:
        num_heads: query heads.
        head_dim: size of each head; None divides the width of the model by `num_heads`.
        num_kv_heads: key and value heads, each shared by equally many query heads; None for as
            many as there are query heads.
        mask: 'causal' attends to the past, 'full' to the whole segment.
        position: 'rotary' turns queries and keys by their position, 'none' does not.
        rotary_wavelength: longest wavelength of the rotation, in tokens.
        implementation: of the attention product; 'auto' leaves the choice to JAX.
    """

    num_heads: int
    head_dim: int | None = None
    num_kv_heads: int | None = None
    mask: Literal['causal', 'full'] = 'causal'
    position: Literal['rotary', 'none'] = 'rotary'
    rotary_wavelength: float = 10_000.0
    implementation: Literal['auto', 'xla', 'cudnn'] = 'auto'

    def check(self) -> None:
        require_positive(self, 'num_heads', 'num_kv_heads', 'head_dim')
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f'num_kv_heads ({self.num_kv_heads}) must divide num_heads ({self.num_heads})'
            )
        if self.head_dim is not None and self.position == 'rotary' and self.head_dim % 2:
            raise ValueError(f'head_dim must be even for rotary positions: {self.head_dim}')

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        if positions is None:
            positions = Positions.unpacked(x_BTD.shape[:2])
        head_dim = self._head_dim(x_BTD.shape[-1])
        kv_heads = self.num_kv_heads or self.num_heads
        q_BTNH = self._project('query', x_BTD, self.num_heads, head_dim)
        k_BTKH = self._project('key', x_BTD, kv_heads, head_dim)
        v_BTKH = self._project('value', x_BTD, kv_heads, head_dim)
        if self.position == 'rotary':
            q_BTNH = rotate(q_BTNH, positions.index_BT, self.rotary_wavelength)
            k_BTKH = rotate(k_BTKH, positions.index_BT, self.rotary_wavelength)
        out_BTNH = jax.nn.dot_product_attention(
            q_BTNH,
            k_BTKH,
            v_BTKH,
            mask=_same_segment(positions.segment_BT),
            is_causal=self.mask == 'causal',
            implementation=None if self.implementation == 'auto' else self.implementation,
        )
        return self._project_out(out_BTNH, x_BTD.shape[-1])

    def _head_dim(self, dims: int) -> int:
        if self.head_dim is not None:
            return self.head_dim
        step = 2 if self.position == 'rotary' else 1
        if dims % (step * self.num_heads):
            even = ' into heads of even size' if step == 2 else ''
            raise UserError(
                f'{self.sym_path}: {self.num_heads} heads do not divide the width {dims}{even}; '
                'set head_dim, or choose another num_heads'
            )
        return dims // self.num_heads

    def _project(self, name: str, x_BTD: jax.Array, heads: int, head_dim: int) -> jax.Array:
        shape = (x_BTD.shape[-1], heads, head_dim)
        init = initializers.lecun_normal(in_axis=0, out_axis=(1, 2))
        kernel = self.param(name, shape, ('embed', 'heads', 'kv'), init)
        y_BTNH = jnp.einsum('btd,dnh->btnh', x_BTD, kernel)
        return self.constrain(y_BTNH, ('batch', 'length', 'heads', 'kv'))

    def _project_out(self, out_BTNH: jax.Array, dims: int) -> jax.Array:
        shape = (*out_BTNH.shape[-2:], dims)
        init = initializers.lecun_normal(in_axis=(0, 1), out_axis=2)
        kernel = self.param('output', shape, ('heads', 'kv', 'embed'), init)
        x_BTD = jnp.einsum('btnh,nhd->btd', out_BTNH, kernel)
        return self.constrain(x_BTD, ('batch', 'length', 'features'))


def _same_segment(segment_BT: jax.Array | None) -> jax.Array | None:
    if segment_BT is None:
        return None
    return (segment_BT[:, :, None] == segment_BT[:, None, :])[:, None]


def rotate(x_BTNH: jax.Array, index_BT: jax.Array, wavelength: float) -> jax.Array:
    """Turns each pair of features by an angle that grows with the position (Su et al. 2021).

    Args:
        x_BTNH: queries or keys; H is even. Feature i is paired with feature i + H / 2.
        index_BT: positions.
        wavelength: of the slowest pair, in tokens.
    """
    half = x_BTNH.shape[-1] // 2
    frequency_h = wavelength ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle_BT1h = index_BT[:, :, None, None].astype(jnp.float32) * frequency_h
    sin, cos = jnp.sin(angle_BT1h), jnp.cos(angle_BT1h)
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x_BTNH.dtype)
