import jax
from flax.linen import initializers

from trainer.layers.depthwise import DepthwiseConv1D
from trainer.layers.initialization import Initializer
from trainer.layers.matrix_memory import Writes, check_chunk, scan_memory, steps
from trainer.layers.normalization import Normalization, RMSNorm
from trainer.layers.positions import Positions
from trainer.layers.projections import from_heads, to_heads
from trainer.layers.recurrence import Recurrent
from trainer.symbolic.component import require_above_zero, require_positive
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue


class Mamba2(Recurrent):
    """Mamba-2: [B, T, D] -> [B, T, D]. Dao & Gu 2024, section 7.

    Each head has a state S of `head_dim` × `state_dims`: S[t] = exp(-dt[t] * r) S[t - 1] + dt[t] *
    u[t] w[t]^T, read as S[t] q[t] + skip * u[t]. The values u, keys w and queries q are
    convolved projections; dt is softplus of a projection. The result is gated, normalized and
    projected.

    Attributes:
        head_dim: features of a head.
        state_dims: size of the keys.
        expansion: features of all heads, as a multiple of the width of the model.
        num_groups: groups of heads, each with its own keys and queries.
        convolution: applied to values, keys and queries, each with its own taps.
        norm: applied to the gated result.
        chunk: positions that are computed at once, a power of two. It changes the time, and no
            result.
        init: of new kernels; None for a normal distribution of deviation 1 / sqrt(inputs).
    """

    head_dim: int = 64
    state_dims: int = 128
    expansion: float = 2.0
    num_groups: int = 1
    convolution: DepthwiseConv1D = DepthwiseConv1D(4)
    norm: Normalization = RMSNorm()
    chunk: int = 64
    init: Initializer | None = None

    usual = {
        'head_dim': UsualValue(64, 64, 128, 'Dao & Gu 2024 (Mamba-2)'),
        'state_dims': UsualValue(128, 64, 256, 'Dao & Gu 2024 (Mamba-2)'),
        'expansion': UsualValue(2.0, 1.9, 2.1, 'Gu & Dao 2023, Dao & Gu 2024'),
        'num_groups': UsualValue(1, 1, 8, 'Dao & Gu 2024 (Mamba-2)'),
    }

    def check(self) -> None:
        require_positive(self, 'head_dim', 'state_dims', 'num_groups')
        require_above_zero(self, 'expansion')
        check_chunk(self)

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        if positions is None:
            positions = Positions.unpacked(x_BTD.shape[:2])
        heads = self._heads(x_BTD.shape[-1])
        gate_BTNH = to_heads(self, 'gate', x_BTD, heads, self.head_dim, self.init)
        u_BTNH = to_heads(self, 'input', x_BTD, heads, self.head_dim, self.init)
        u_BTNH = self.whole(self._convolved('input', u_BTNH, positions))
        dt_BTN, log_a_BTN = steps(self, 'step', x_BTD, heads, self.init)
        writes = Writes(
            q_BTGK=self._shared('read', x_BTD, positions),
            k_BTGK=self._shared('write', x_BTD, positions),
            v_BTNV=u_BTNH,
            log_a_BTN=log_a_BTN,
            b_BTN=dt_BTN,
        )
        start = self.carried('state', (len(x_BTD), heads, self.state_dims, self.head_dim))
        y_BTNH, end = scan_memory(writes, positions, start, self.chunk, corrects=False)
        self.carry('state', end)
        skip_N = self.param(
            'skip', (heads,), ('heads',), initializers.ones, decay=False, keep_float32=True
        )
        y_BTNH = self.whole(y_BTNH) + skip_N[:, None] * u_BTNH
        gated_BTNH = y_BTNH.astype(x_BTD.dtype) * jax.nn.silu(gate_BTNH)
        normal_BTF = self.norm(gated_BTNH.reshape(*x_BTD.shape[:2], -1))
        return from_heads(self, normal_BTF.reshape(gated_BTNH.shape), x_BTD.shape[-1], self.init)

    def _heads(self, dims: int) -> int:
        width = round(self.expansion * dims)
        if width % (self.head_dim * self.num_groups):
            raise UserError(
                f'{self.sym_path}: {self.num_groups} groups of heads of size {self.head_dim} do '
                f'not divide {width} features ({self.expansion} times the width of the model); '
                'choose another head_dim, expansion or num_groups'
            )
        return width // self.head_dim

    def _convolved(self, name: str, x: jax.Array, positions: Positions) -> jax.Array:
        mixed: jax.Array = self.convolution.call_as(f'{name}_convolution', 'forward', x, positions)
        return jax.nn.silu(mixed)

    def _shared(self, name: str, x_BTD: jax.Array, positions: Positions) -> jax.Array:
        """Keys or queries [B, T, G, K] of groups. Each device has them all, as they are few."""
        shape = x_BTD.shape[-1], self.num_groups * self.state_dims
        kernel = self.param(name, shape, ('embed', None), self.init)
        y_BTK = self._convolved(name, self.product('btd,dk->btk', x_BTD, kernel), positions)
        y_BTK = self.constrain(y_BTK, ('batch', None, None))
        return y_BTK.reshape(*x_BTD.shape[:2], self.num_groups, self.state_dims)
