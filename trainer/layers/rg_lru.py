from typing import Any

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.layers.activations import Activation, activate
from trainer.layers.depthwise import DepthwiseConv1D
from trainer.layers.initialization import Bias, Initializer, kernel_init
from trainer.layers.positions import Positions
from trainer.layers.projections import from_heads, to_heads
from trainer.layers.recurrence import Recurrent, linear_scan
from trainer.layers.width import width_span
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue, choice, over

_SHARPNESS = 8.0
"""The constant c of the paper."""

_MAX_LOG = -1e-12
"""The root of 1 - a^2 has no gradient at a = 1, where sigmoids underflow."""


class RGLRU(Recurrent):
    """The recurrent block of Griffin: [B, T, D] -> [B, T, D]. De et al. 2024, section 2.

    activation(x @ gate) * scan(convolution(x @ input)), projected to the width of the model. The
    scan is the real-gated linear recurrent unit: h[t] = a[t] * h[t - 1] + sqrt(1 - a[t]^2) * (i[t]
    * u[t]) for each feature, where log a[t] = -8 * softplus(p) * r[t]. The gates i and r are
    sigmoids of u[t], with a kernel for each head. A new p gives a^8 between 0.9 and 0.999.

    Attributes:
        num_heads: blocks of features, each with its own kernels in the gates.
        width: features of the scan; None for the width of the model.
        convolution: applied before the scan.
        activation: of the branch that gates the result.
        bias: 'zeros' adds biases that start at zero to the three projections. The gates of the
            scan always have them.
        init: of new kernels; None for a normal distribution of deviation 1 / sqrt(inputs).
    """

    num_heads: int
    width: int | None = None
    convolution: DepthwiseConv1D = DepthwiseConv1D(4)
    activation: Activation = 'gelu'
    bias: Bias = 'none'
    init: Initializer | None = None

    usual = {'activation': choice('gelu', 'De et al. 2024 (Griffin)')}

    def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
        ratio = UsualValue(4 / 3, 1.0, 1.5, 'De et al. 2024 (Griffin); 1: RecurrentGemma')
        width = over(width_span(experiment), ratio.scaled)
        return super().usual_values(experiment) | ({} if width is None else {'width': width})

    def check(self) -> None:
        require_positive(self, 'num_heads', 'width')

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        if positions is None:
            positions = Positions.unpacked(x_BTD.shape[:2])
        shape = self._shape(x_BTD.shape[-1])
        gate_BTNH = to_heads(self, 'gate', x_BTD, *shape, self.init, self.bias)
        u_BTNH = to_heads(self, 'input', x_BTD, *shape, self.init, self.bias)
        u_BTNH = self.whole(self.convolution(u_BTNH, positions))
        p_NH = self.param('decay', shape, ('heads', 'kv'), _new_decay, False, keep_float32=True)
        kept_BTNH = jax.nn.sigmoid(self._logits('recurrence_gate', u_BTNH))
        log_a_BTNH = jnp.minimum(-_SHARPNESS * jax.nn.softplus(p_NH) * kept_BTNH, _MAX_LOG)
        taken_BTNH = jax.nn.sigmoid(self._logits('input_gate', u_BTNH)) * u_BTNH
        h_BTNH, state_BNH = linear_scan(
            jnp.exp(log_a_BTNH),
            jnp.sqrt(-jnp.expm1(2 * log_a_BTNH)) * taken_BTNH,
            positions,
            self.carried('state', (len(x_BTD), *shape)),
        )
        self.carry('state', state_BNH)
        out_BTNH = activate(gate_BTNH, self.activation) * h_BTNH.astype(x_BTD.dtype)
        return from_heads(self, out_BTNH, x_BTD.shape[-1], self.init, self.bias)

    def _shape(self, dims: int) -> tuple[int, int]:
        width = self.width or dims
        if width % self.num_heads:
            raise UserError(
                f'{self.sym_path}: {self.num_heads} heads do not divide the width {width}; choose '
                'another num_heads, or another width'
            )
        return self.num_heads, width // self.num_heads

    def _logits(self, name: str, u_BTNH: jax.Array) -> jax.Array:
        """Logits of a gate in float32."""
        heads, size = u_BTNH.shape[2:]
        init = kernel_init(self.init, in_axis=1, out_axis=2, batch_axis=0)
        kernel_NHH = self.param(name, (heads, size, size), ('heads', 'kv', None), init)
        bias_NH = self.param(
            f'{name}_bias', (heads, size), ('heads', 'kv'), initializers.zeros, decay=False
        )
        product_BTNH = self.product('btnh,nhk->btnk', u_BTNH, kernel_NHH)
        return self.whole((product_BTNH + bias_NH).astype(jnp.float32))


def _new_decay(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    log_a = jnp.log(jax.random.uniform(key, shape, dtype, 0.9, 0.999)) / _SHARPNESS
    return jnp.log(jnp.expm1(-log_a))
