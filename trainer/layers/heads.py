import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.layers import tokamax_kernels
from trainer.layers.base import Layer, current_frame
from trainer.layers.blockwise import Places, Shaping, Visibility
from trainer.layers.context import current_context
from trainer.layers.cudnn import attend_by_cudnn
from trainer.layers.initialization import Bias, Initializer
from trainer.layers.logit_cap import capped_attention
from trainer.layers.normalization import Normalization
from trainer.layers.projections import Projection, from_heads, to_heads
from trainer.layers.ring import ring_attention, shares_positions
from trainer.layers.width import width_span
from trainer.symbolic.component import OptionalNumber, require_above_zero, require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue, over, span


class MultiHead(Layer):
    """Base of attention with several heads.

    Attributes:
        num_heads: query heads.
        head_dim: size of each head; None divides the width of the model by `num_heads`.
        num_kv_heads: key and value heads, each shared by equally many query heads; None for
            `num_heads`.
        implementation: of the attention product; 'auto' leaves the choice to JAX. 'cudnn' needs an
            NVIDIA GPU and bfloat16. On a mesh that shards positions, 'auto' and 'xla' pass keys and
            values around a ring of devices. With 'cudnn', each device has all positions of a part
            of the heads.
        bias: 'zeros' adds biases that start at zero to queries, keys, values and the result. A list
            names the projections that have one, such as ['query', 'key', 'value'] (Qwen Team 2024).
        logit_cap: each logit becomes logit_cap * tanh(logit / logit_cap) (Gemma Team 2024, section
            2); None applies no cap. Fused kernels do not support it.
        per_dim_scale: learns a scale of each feature of a head, as Pax's PerDimScale: queries are
            multiplied by softplus(p) / log(2), where p starts at zero.
        softmax_scale: multiplies the products of queries and keys; None for 1 / sqrt(head_dim).
        qk_norm: normalizes each head of the queries, and of the keys, before a rotation (Dehghani
            et al. 2023, section 2). Both have parameters of their own; None normalizes neither.
        sinks: learns a logit of each head that takes a part of the weight from all keys, and has no
            value (OpenAI 2025). It starts at zero. Fused kernels do not support it.
        init: of new kernels; None for a normal distribution of deviation 1 / sqrt(inputs).
    """

    sees_prefix = True

    num_heads: int
    head_dim: int | None = None
    num_kv_heads: int | None = None
    implementation: Literal['auto', 'xla', 'cudnn'] = 'auto'
    bias: Bias | list[Projection] = 'none'
    logit_cap: OptionalNumber = None
    per_dim_scale: bool = False
    softmax_scale: OptionalNumber = None
    qk_norm: Normalization | None = None
    sinks: bool = False
    init: Initializer | None = None

    usual = {
        'head_dim': UsualValue(64, 32, 128, 'Vaswani et al. 2017, BERT, ViT; 128: LLaMA; 32: Swin'),
        'logit_cap': UsualValue(50.0, 30.0, 50.0, 'Gemma 2 (Gemma Team 2024); 30: Grok-1'),
    }

    def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
        by_width = over(width_span(experiment), _usual_heads)
        by_heads = over(span(self.sym_getattr('num_heads')), _usual_kv_heads)
        stated = super().usual_values(experiment)
        stated |= {} if by_width is None else {'num_heads': by_width}
        return stated | ({} if by_heads is None else {'num_kv_heads': by_heads})

    def check(self) -> None:
        require_positive(self, 'num_heads', 'num_kv_heads', 'head_dim')
        require_above_zero(self, 'logit_cap', 'softmax_scale')
        for name in ('logit_cap', 'sinks'):
            if self.sym_getattr(name) not in (None, False) and self.implementation == 'cudnn':
                raise ValueError(f"{name} needs another implementation than 'cudnn'")
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f'num_kv_heads ({self.num_kv_heads}) must divide num_heads ({self.num_heads})'
            )

    def _head_dim(self, dims: int, step: int = 1) -> int:
        if self.head_dim is not None:
            return self.head_dim
        if dims % (step * self.num_heads):
            even = ' into heads of even size' if step == 2 else ''
            raise UserError(
                f'{self.sym_path}: {self.num_heads} heads do not divide the width {dims}{even}; '
                'set head_dim, or choose another num_heads'
            )
        return dims // self.num_heads

    def _project(self, name: Projection, x_BTD: jax.Array, heads: int, head_dim: int) -> jax.Array:
        return to_heads(self, name, x_BTD, heads, head_dim, self.init, self._projection_bias(name))

    def _project_out(self, out_BTNH: jax.Array, dims: int) -> jax.Array:
        return from_heads(self, out_BTNH, dims, self.init, self._projection_bias('output'))

    def _projection_bias(self, name: Projection) -> Bias:
        if isinstance(self.bias, str):
            return self.bias
        return 'zeros' if name in self.bias else 'none'

    def _normalized(self, name: Projection, x_BTNH: jax.Array) -> jax.Array:
        if self.qk_norm is None:
            return x_BTNH
        y_BTNH: jax.Array = self.qk_norm.call_as(f'{name}_norm', 'forward', x_BTNH)
        return y_BTNH

    def _prepared(
        self, q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Scaled queries, and keys and values of all positions on each device, for `_attend`."""
        if self.implementation != 'cudnn' or self._needs_xla():
            whole = ('batch', None, 'heads', 'kv')
            k_BSKH, v_BSKH = self.constrain(k_BSKH, whole), self.constrain(v_BSKH, whole)
        return self._scaled(q_BTNH), k_BSKH, v_BSKH

    def _scaled(self, q_BTNH: jax.Array) -> jax.Array:
        if self.softmax_scale is not None:  # All implementations divide by the root of the size.
            factor = self.softmax_scale * math.sqrt(q_BTNH.shape[-1])
            q_BTNH = (q_BTNH.astype(jnp.float32) * factor).astype(q_BTNH.dtype)
        if not self.per_dim_scale:
            return q_BTNH
        shape = q_BTNH.shape[-1:]
        scale_H = self.param('per_dim_scale', shape, ('kv',), initializers.zeros, decay=False)
        wide_H = jax.nn.softplus(scale_H.astype(jnp.float32)) / math.log(2)
        return q_BTNH * wide_H.astype(q_BTNH.dtype)

    def _sink(self) -> jax.Array | None:
        if not self.sinks:
            return None
        shape = (self.num_heads,)
        return self.param(
            'sinks', shape, ('heads',), initializers.zeros, decay=False, keep_float32=True
        )

    def _attend(
        self,
        q_BTNH: jax.Array,
        k_BSKH: jax.Array,
        v_BSKH: jax.Array,
        mask: jax.Array | None,
        is_causal: bool = False,
        window: int | None = None,
        bias: jax.Array | None = None,
        sink_N: jax.Array | None = None,
    ) -> jax.Array:
        """Attention: the mean of the values, weighted by the softmax of logits: [B, T, N, H].

        Args:
            mask: True where a key is visible, [1 or B, 1, 1 or T, S]; None where all are.
            is_causal: hides later positions as well.
            window: of causal attention, where there is no mask, no cap and no bias.
            bias: added to the logits before the cap, float32 [1 or B, N, T, S]. cuDNN takes none.
            sink_N: the result of `_sink`, which cannot run inside of `jax.vmap`.
        """
        each = q_BTNH, k_BSKH, v_BSKH
        if self.logit_cap is not None or sink_N is not None:
            return capped_attention(*each, self.logit_cap, mask, is_causal, bias, sink_N)
        if self.implementation == 'cudnn' and not self._needs_xla():
            return attend_by_cudnn(self, *each, mask, is_causal, window)
        has_kernel = self.implementation == 'auto' and current_context().kernels == 'tokamax'
        if has_kernel and not self._needs_xla():
            return tokamax_kernels.attention(*each, mask, is_causal, window, bias)
        return jax.nn.dot_product_attention(
            *each,
            bias=bias,
            mask=mask,
            is_causal=is_causal,
            local_window_size=None if window is None else (window - 1, 0),
            implementation='xla' if self.implementation == 'xla' else None,
        )

    def _attend_in_ring(
        self,
        q_BTNH: jax.Array,
        k_BSKH: jax.Array,
        v_BSKH: jax.Array,
        queries: Places,
        keys: Places,
        visible: Visibility,
        bias_ND: jax.Array | None = None,
    ) -> jax.Array:
        """Attention of devices that share positions: [B, T, N, H]; see `ring_attention`."""
        cap = None if self.logit_cap is None else jnp.asarray(self.logit_cap, jnp.float32)
        each, shaping = (self._scaled(q_BTNH), k_BSKH, v_BSKH), Shaping(cap, bias_ND)
        out_BTNH, total_BTN = ring_attention(self, *each, queries, keys, visible, shaping)
        sink_N = self._sink()
        if sink_N is None:
            return out_BTNH
        share_BTN = jax.nn.sigmoid(total_BTN - sink_N)
        return (out_BTNH * share_BTN[..., None]).astype(out_BTNH.dtype)

    def _shares_positions(self, *lengths: int) -> bool:
        # The kernels of cuDNN divide heads in place of positions.
        return self.implementation != 'cudnn' and shares_positions(*lengths)

    def _needs_xla(self) -> bool:
        # cuDNN's kernels are for long sequences, not for one token and its cache. Initialization
        # traces in float32, which they do not support, and drops the result.
        return self.cache_length is not None or current_frame().module.is_initializing()


def _usual_heads(width: float) -> UsualValue:
    source = 'heads of 64: Vaswani et al. 2017, BERT, ViT; of 128: LLaMA; of 32: Swin'
    return UsualValue(max(width / 64, 1), max(width / 128, 1), max(width / 32, 2), source)


def _usual_kv_heads(heads: float) -> UsualValue:
    source = 'a quarter: Llama 3, Mistral; an eighth: Llama 2; all: Vaswani et al. 2017'
    return UsualValue(max(heads / 4, 1), max(heads / 8, 1), heads, source)
