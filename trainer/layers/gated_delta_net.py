import math

import jax
import jax.numpy as jnp

from trainer.layers.depthwise import DepthwiseConv1D
from trainer.layers.initialization import Initializer
from trainer.layers.matrix_memory import Writes, check_chunk, scan_memory, steps
from trainer.layers.normalization import Normalization, RMSNorm
from trainer.layers.positions import Positions
from trainer.layers.projections import from_heads, to_heads
from trainer.layers.recurrence import Recurrent
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue

_EPSILON = 1e-6


class GatedDeltaNet(Recurrent):
    """Gated DeltaNet: [B, T, D] -> [B, T, D]. Yang et al. 2025, section 3.

    Each head has a state S of `head_dim` × `value_dim`, which forgets and is corrected: S[t] = a[t]
    S[t - 1] + b[t] k[t] (v[t] - a[t] S[t - 1]^T k[t])^T, read as S[t]^T q[t]. Queries, keys and
    values are convolved projections; queries and keys have norm 1. The result is normalized for
    each head, gated and projected.

    Attributes:
        num_heads: heads, each with its own state.
        head_dim: size of queries and keys; None divides the width of the model by `num_heads`.
        value_dim: size of values; None for `head_dim`.
        convolution: applied to queries, keys and values, each with its own taps.
        norm: applied to the result of each head.
        chunk: positions that are computed at once, a power of two. It changes the time, and no
            result.
        init: of new kernels; None for a normal distribution of deviation 1 / sqrt(inputs).
    """

    num_heads: int
    head_dim: int | None = None
    value_dim: int | None = None
    convolution: DepthwiseConv1D = DepthwiseConv1D(4)
    norm: Normalization = RMSNorm()
    chunk: int = 64
    init: Initializer | None = None

    usual = {'head_dim': UsualValue(128, 128, 256, '256: Yang et al. 2025; 128: Qwen3-Next')}

    def check(self) -> None:
        require_positive(self, 'num_heads', 'head_dim', 'value_dim')
        check_chunk(self)

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        if positions is None:
            positions = Positions.unpacked(x_BTD.shape[:2])
        size = self._head_dim(x_BTD.shape[-1])
        value_size = self.value_dim or size
        q_BTNK = self._convolved('query', x_BTD, size, positions)
        k_BTNK = self._convolved('key', x_BTD, size, positions)
        _, log_a_BTN = steps(self, 'step', x_BTD, self.num_heads, self.init)
        writes = Writes(
            q_BTGK=_of_norm(q_BTNK, 1 / math.sqrt(size)),
            k_BTGK=_of_norm(k_BTNK, 1.0),
            v_BTNV=self._convolved('value', x_BTD, value_size, positions),
            log_a_BTN=log_a_BTN,
            b_BTN=self._strength(x_BTD),
        )
        start = self.carried('state', (len(x_BTD), self.num_heads, size, value_size))
        read_BTNV, end = scan_memory(writes, positions, start, self.chunk, corrects=True)
        self.carry('state', end)
        normal_BTNV = self.norm(self.whole(read_BTNV)).astype(x_BTD.dtype)
        gate_BTNV = to_heads(self, 'gate', x_BTD, self.num_heads, value_size, self.init)
        return from_heads(self, normal_BTNV * jax.nn.silu(gate_BTNV), x_BTD.shape[-1], self.init)

    def _head_dim(self, dims: int) -> int:
        if self.head_dim is None and dims % self.num_heads:
            raise UserError(
                f'{self.sym_path}: {self.num_heads} heads do not divide the width {dims}; set '
                'head_dim, or choose another num_heads'
            )
        return self.head_dim or dims // self.num_heads

    def _convolved(self, name: str, x_BTD: jax.Array, size: int, positions: Positions) -> jax.Array:
        x_BTNH = to_heads(self, name, x_BTD, self.num_heads, size, self.init)
        mixed = self.convolution.call_as(f'{name}_convolution', 'forward', x_BTNH, positions)
        return self.whole(jax.nn.silu(mixed))

    def _strength(self, x_BTD: jax.Array) -> jax.Array:
        """The share of each value that is written."""
        shape = x_BTD.shape[-1], self.num_heads
        kernel = self.param('strength', shape, ('embed', 'heads'), self.init)
        logits_BTN = self.product('btd,dn->btn', x_BTD, kernel, jnp.float32)
        return self.constrain(jax.nn.sigmoid(logits_BTN), ('batch', None, 'heads'))


def _of_norm(x_BTNK: jax.Array, norm: float) -> jax.Array:
    wide = x_BTNK.astype(jnp.float32)
    square = jnp.sum(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * (norm * jax.lax.rsqrt(square + _EPSILON))).astype(x_BTNK.dtype)
