from typing import Any

import jax
import jax.numpy as jnp

from trainer.layers.initialization import Initializer, kernel_init
from trainer.layers.positions import Positions
from trainer.layers.recurrence import Recurrent
from trainer.symbolic.component import require_positive

_GATES = 4
_FORGET = 1
"""The gate whose new bias is 1, so that the cell keeps its value (Gers et al. 2000)."""


class LSTM(Recurrent):
    """Long short-term memory, projected to the width of the model: [B, T, D] -> [B, T, D].

    Hochreiter & Schmidhuber 1997; Gers et al. 2000 (forget gate). With i, f, o = sigmoid and g =
    tanh of projections of x[t] and h[t - 1]: c[t] = f * c[t - 1] + i * g, h[t] = o * tanh(c[t]).
    Positions are computed one after another, which takes longer than the chunks of other mixers.

    Attributes:
        hidden_dims: size of the state; None for the width of the model.
        init: of new kernels; None for a normal distribution of deviation 1 / sqrt(inputs).
    """

    hidden_dims: int | None = None
    init: Initializer | None = None

    def check(self) -> None:
        require_positive(self, 'hidden_dims')

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        if positions is None:
            positions = Positions.unpacked(x_BTD.shape[:2])
        examples, _, dims = x_BTD.shape
        hidden = self.hidden_dims or dims
        bias_GH = self.param('bias', (_GATES, hidden), (None, 'mlp'), _new_bias, decay=False)
        given_BTGH = self.product('btd,dgh->btgh', x_BTD, self._kernel('input', dims, hidden))
        given_BTGH = self.constrain(given_BTGH + bias_GH, ('batch', None, None, 'mlp'))
        kernel_HGH = self._kernel('recurrent', hidden, hidden)

        def step(state: Any, at: Any) -> tuple[Any, jax.Array]:
            begins_B1, is_token_B1, given_BGH = at
            h, c = (jnp.where(begins_B1, 0.0, each) for each in state)
            h_BH = h.astype(self.dtype)
            recurrent = self.product('bh,hgk->bgk', h_BH, kernel_HGH, in_loop=True)
            new = _cell((given_BGH + recurrent).astype(jnp.float32), c)
            state = tuple(jnp.where(is_token_B1, *each) for each in zip(new, (h, c), strict=True))
            return state, new[0].astype(x_BTD.dtype)

        start = tuple(self.carried(name, (examples, hidden)) for name in ('h', 'c'))
        marks = (each[..., None] for each in (positions.begins_BT, positions.is_token_BT))
        each = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (*marks, given_BTGH))
        end, h_TBH = jax.lax.scan(step, start, each)
        for name, state in zip(('h', 'c'), end, strict=True):
            self.carry(name, state)
        output = self.param('output', (hidden, dims), ('mlp', 'embed'), self.init)
        out_BTD = self.product('bth,hd->btd', jnp.swapaxes(h_TBH, 0, 1), output)
        return self.constrain(out_BTD, ('batch', 'length', 'features'))

    def _kernel(self, name: str, inputs: int, hidden: int) -> jax.Array:
        init = kernel_init(self.init, in_axis=0, out_axis=(1, 2))
        return self.param(name, (inputs, _GATES, hidden), ('embed', None, 'mlp'), init)


def _cell(gates_BGH: jax.Array, c_BH: jax.Array) -> tuple[jax.Array, jax.Array]:
    i, f, o, g = (gates_BGH[:, at] for at in range(_GATES))
    c_BH = jax.nn.sigmoid(f) * c_BH + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c_BH), c_BH


def _new_bias(_: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jnp.zeros(shape, dtype).at[_FORGET].set(1)
