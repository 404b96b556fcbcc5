import math
from typing import Literal

import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.blockwise import Shaping, Visibility, places
from trainer.layers.initialization import Initializer, kernel_init
from trainer.layers.kv_cache import cached_index, update_cache, visible_entries
from trainer.layers.masks import HIDDEN, causal_but_for_prefix, same_segment
from trainer.layers.normalization import Normalization, RMSNorm
from trainer.layers.positions import Positions
from trainer.layers.projections import from_heads, to_heads
from trainer.layers.ring import ring_attention, shares_positions
from trainer.layers.rotary import Rotary, turned
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue


class LatentAttention(Layer):
    """Multi-head latent attention: [B, T, D] -> [B, T, D]. DeepSeek-AI 2024, section 2.1.

    Keys and values of all heads are products of one normalized latent of each position. A further
    part of each query and one key, which all heads share, have rotary positions. Decoding caches
    the latents and these keys alone, `latent_dims + rotary_dims` numbers for each position.

    No fused kernel takes values of another size than keys. Unless devices share positions, logits
    of all pairs are in memory.

    Attributes:
        num_heads: heads, each with its own keys and values.
        latent_dims: size of the latent of keys and values.
        head_dim: size of queries and keys without positions; None divides the width of the model
            by `num_heads`.
        rotary_dims: size of the part with rotary positions, even; None for half of `head_dim`.
        value_dim: size of values; None for `head_dim`.
        query_latent_dims: size of a normalized latent of the queries; None makes queries of the
            input itself.
        norm: applied to each latent.
        mask: 'causal' attends to the past, and to the prefix where positions have one; 'full' to
            the whole segment.
        position: rotary positions of queries and keys, such as their wavelength.
        init: of new kernels; None for a normal distribution of deviation 1 / sqrt(inputs).
    """

    sees_prefix = True

    num_heads: int
    latent_dims: int
    head_dim: int | None = None
    rotary_dims: int | None = None
    value_dim: int | None = None
    query_latent_dims: int | None = None
    norm: Normalization = RMSNorm()
    mask: Literal['causal', 'full'] = 'causal'
    position: Rotary = Rotary()
    init: Initializer | None = None

    usual = {
        'latent_dims': UsualValue(512, 256, 512, 'DeepSeek-V2 and V3; 256: MiniCPM3'),
        'head_dim': UsualValue(128, 64, 128, 'DeepSeek-V2 and V3; 64: MiniCPM3'),
        'rotary_dims': UsualValue(64, 32, 64, 'DeepSeek-V2 and V3; 32: MiniCPM3'),
        'query_latent_dims': UsualValue(1536, 768, 1536, 'DeepSeek-V2 and V3; 768: MiniCPM3'),
    }

    def check(self) -> None:
        sizes = 'head_dim', 'rotary_dims', 'value_dim', 'query_latent_dims'
        require_positive(self, 'num_heads', 'latent_dims', *sizes)
        if self.rotary_dims is not None and self.rotary_dims % 2:
            raise ValueError(f'rotary_dims must be even: {self.rotary_dims}')
        if self.position.fraction != 1:
            raise ValueError(
                f'position.fraction must be 1, since rotary_dims has a size: '
                f'{self.position.fraction}'
            )

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        if positions is None:
            positions = Positions.unpacked(x_BTD.shape[:2])
        head_dim, rotary_dims = self._sizes(x_BTD.shape[-1])
        index_BT = positions.index_BT
        input_BTD = x_BTD
        if self.query_latent_dims is not None:
            input_BTD = self._latent('query_latent', x_BTD, self.query_latent_dims)
        q_BTNH = to_heads(self, 'query', input_BTD, self.num_heads, head_dim, self.init)
        q_BTNR = to_heads(self, 'rotary_query', input_BTD, self.num_heads, rotary_dims, self.init)
        q_BTNR = turned(q_BTNR, index_BT, self.position)
        c_BTL = self._latent('latent', x_BTD, self.latent_dims)
        k_BTR = self._down('rotary_key', x_BTD, rotary_dims)
        k_BTR = turned(k_BTR[:, :, None], index_BT, self.position)[:, :, 0]
        if shares_positions(x_BTD.shape[1]):
            out_BTNV = self._attend_in_ring(q_BTNH, q_BTNR, c_BTL, k_BTR, positions)
            return from_heads(self, out_BTNV, x_BTD.shape[-1], self.init)
        if self.cache_length is None:
            mask = self._mask(positions)
        else:
            c_BTL, k_BTR, mask = self._cached(c_BTL, k_BTR, positions)
        whole = ('batch', None, 'latent')
        keys = self.constrain(c_BTL, whole), self.constrain(k_BTR, whole)
        out_BTNV = self._attend(q_BTNH, q_BTNR, *keys, mask)
        return from_heads(self, out_BTNV, x_BTD.shape[-1], self.init)

    def _sizes(self, dims: int) -> tuple[int, int]:
        """Sizes of the parts of a query without positions, and with them."""
        if self.head_dim is None and dims % self.num_heads:
            raise UserError(
                f'{self.sym_path}: {self.num_heads} heads do not divide the width {dims}; set '
                'head_dim, or choose another num_heads'
            )
        head_dim = self.head_dim or dims // self.num_heads
        rotary_dims = self.rotary_dims or head_dim // 2
        if not rotary_dims or rotary_dims % 2:
            raise UserError(
                f'{self.sym_path}: half of head_dim {head_dim} is not even, as rotary positions '
                'need it; set rotary_dims'
            )
        return head_dim, rotary_dims

    def _latent(self, name: str, x_BTD: jax.Array, size: int) -> jax.Array:
        return self.norm.call_as(f'{name}_norm', 'forward', self._down(name, x_BTD, size))

    def _down(self, name: str, x_BTD: jax.Array, size: int) -> jax.Array:
        kernel = self.param(
            name, (x_BTD.shape[-1], size), ('embed', 'latent'), kernel_init(self.init)
        )
        y_BTL = self.product('btd,dl->btl', x_BTD, kernel)
        return self.constrain(y_BTL, ('batch', 'length', 'latent'))

    def _mask(self, positions: Positions) -> jax.Array | None:
        if self.mask == 'causal':
            return causal_but_for_prefix(positions)
        return same_segment(positions.segment_BT)

    def _cached(
        self, c_BTL: jax.Array, k_BTR: jax.Array, positions: Positions
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The latents and rotary keys of all positions so far, and the mask of them."""
        if self.mask != 'causal':
            raise UserError(f'{self.sym_path}: only causal attention can decode token by token')
        axes = ('batch', 'length', 'latent')
        c_BSL = update_cache(self, 'latents', c_BTL, positions, axes)
        k_BSR = update_cache(self, 'rotary_keys', k_BTR, positions, axes)
        visible_BTS = visible_entries(positions, cached_index(self, positions))
        return c_BSL, k_BSR, visible_BTS[:, None]

    def _attend_in_ring(
        self,
        q_BTNH: jax.Array,
        q_BTNR: jax.Array,
        c_BTL: jax.Array,
        k_BTR: jax.Array,
        positions: Positions,
    ) -> jax.Array:
        head_dim, value_dim = q_BTNH.shape[-1], self.value_dim or q_BTNH.shape[-1]
        k_BTNH = self._expanded(c_BTL, self._up('key', head_dim), 'length')
        v_BTNV = self._expanded(c_BTL, self._up('value', value_dim), 'length')
        shared_BTNR = jnp.broadcast_to(k_BTR[:, :, None], q_BTNR.shape)
        queries = jnp.concatenate([q_BTNH, q_BTNR], axis=-1)
        keys = jnp.concatenate([k_BTNH, shared_BTNR], axis=-1)
        at, visible = places(positions), Visibility(self.mask == 'causal')
        return ring_attention(self, queries, keys, v_BTNV, at, at, visible, Shaping())[0]

    def _attend(
        self,
        q_BTNH: jax.Array,
        q_BTNR: jax.Array,
        c_BSL: jax.Array,
        k_BSR: jax.Array,
        mask: jax.Array | None,
    ) -> jax.Array:
        """Attention to latents: [B, T, N, V]. Logits, [B, N, T, S], are float32."""
        head_dim, value_dim = q_BTNH.shape[-1], self.value_dim or q_BTNH.shape[-1]
        key_LNH, value_LNV = self._up('key', head_dim), self._up('value', value_dim)
        # Few queries of many positions: the kernels multiply the queries and the results.
        absorbs = self.cache_length is not None and absorbing_is_cheaper(
            q_BTNH.shape[1], c_BSL.shape[1], self.latent_dims, head_dim + value_dim
        )
        if absorbs:
            q_BTNL = self.product('btnh,lnh->btnl', q_BTNH, key_LNH)
            logits_BNTS = _logits('btnl,bsl->bnts', q_BTNL, c_BSL)
        else:
            logits_BNTS = _logits('btnh,bsnh->bnts', q_BTNH, self._expanded(c_BSL, key_LNH))
        logits_BNTS += _logits('btnr,bsr->bnts', q_BTNR, k_BSR)
        logits_BNTS /= math.sqrt(head_dim + k_BSR.shape[-1])
        if mask is not None:
            logits_BNTS = jnp.where(mask, logits_BNTS, HIDDEN)
        weights_BNTS = jax.nn.softmax(logits_BNTS, axis=-1).astype(c_BSL.dtype)
        if absorbs:
            read_BTNL = jnp.einsum('bnts,bsl->btnl', weights_BNTS, c_BSL)
            return self.product('btnl,lnv->btnv', read_BTNL, value_LNV)
        return jnp.einsum('bnts,bsnv->btnv', weights_BNTS, self._expanded(c_BSL, value_LNV))

    def _up(self, name: str, size: int) -> jax.Array:
        shape = (self.latent_dims, self.num_heads, size)
        drawn = kernel_init(self.init, in_axis=0, out_axis=(1, 2))
        # The latent is the input of this kernel, as the features of the model are elsewhere.
        return self.param(name, shape, ('embed', 'heads', 'kv'), drawn)

    def _expanded(
        self, c_BSL: jax.Array, kernel_LNH: jax.Array, keys: str | None = None
    ) -> jax.Array:
        x_BSNH = self.product('bsl,lnh->bsnh', c_BSL, kernel_LNH)
        return self.constrain(x_BSNH, ('batch', keys, 'heads', 'kv'))


def absorbing_is_cheaper(queries: int, keys: int, latent_dims: int, dims: int) -> bool:
    """True if products with latents take fewer operations than those with keys and values.

    Queries and results are multiplied by the kernels of keys and values, or all latents are.

    Args:
        queries: number of new positions.
        keys: number of positions in the cache.
        latent_dims: size of a latent.
        dims: sizes of a key and a value, added.

    Example:
        >>> [absorbing_is_cheaper(queries, 1024, 512, 256) for queries in (1, 128, 256)]
        [True, True, False]
    """
    absorbed = queries * latent_dims * dims + 2 * queries * keys * latent_dims
    expanded = keys * latent_dims * dims + queries * keys * dims
    return absorbed < expanded


def _logits(equation: str, q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.einsum(equation, q, k, preferred_element_type=jnp.float32)
