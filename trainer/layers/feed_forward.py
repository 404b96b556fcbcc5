"""Position-wise feed-forward layers."""

import jax

from trainer.component import require_positive
from trainer.layers.base import Layer
from trainer.layers.dropout import Dropout
from trainer.layers.linear import Activation, activate
from trainer.layers.positions import Positions


class FeedForward(Layer):
    """activation(x @ up) @ down: [B, T, D] -> [B, T, D].

    Attributes:
        hidden_dims: width between the two products; None for four times the width of the model.
        activation: applied there.
        dropout: applied to the hidden values.
    """

    hidden_dims: int | None = None
    activation: Activation = 'gelu'
    dropout: Dropout | None = None

    def check(self) -> None:
        require_positive(self, 'hidden_dims')

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        hidden_BTF = activate(self.project_in('up', x_BTD), self.activation)
        return self.project_out(hidden_BTF, x_BTD.shape[-1])

    def default_hidden_dims(self, dims: int) -> int:
        """The width between the products in a model of width `dims`."""
        return 4 * dims

    def project_in(self, name: str, x_BTD: jax.Array) -> jax.Array:
        dims = x_BTD.shape[-1]
        shape = (dims, self.hidden_dims or self.default_hidden_dims(dims))
        return x_BTD @ self.param(name, shape, ('embed', 'mlp'))

    def project_out(self, hidden_BTF: jax.Array, dims: int) -> jax.Array:
        hidden_BTF = self.constrain(hidden_BTF, ('batch', 'length', 'mlp'))
        if self.dropout is not None:
            hidden_BTF = self.dropout(hidden_BTF)
        x_BTD = hidden_BTF @ self.param('down', (hidden_BTF.shape[-1], dims), ('mlp', 'embed'))
        return self.constrain(x_BTD, ('batch', 'length', 'features'))


class GatedFeedForward(FeedForward):
    """(activation(x @ gate) * (x @ up)) @ down. Shazeer 2020.

    By default as wide as makes its parameters as many as those of the plain layer.
    """

    activation: Activation = 'silu'

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        gate_BTF = activate(self.project_in('gate', x_BTD), self.activation)
        return self.project_out(gate_BTF * self.project_in('up', x_BTD), x_BTD.shape[-1])

    def default_hidden_dims(self, dims: int) -> int:
        return 8 * dims // 3
