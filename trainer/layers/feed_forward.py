"""Position-wise feed-forward layers."""

import jax

from trainer.layers.base import Layer
from trainer.layers.dropout import Dropout
from trainer.layers.linear import Activation, activate
from trainer.layers.positions import Positions


class FeedForward(Layer):
    """activation(x @ up) @ down: [B, T, D] -> [B, T, D].

    Attributes:
        hidden_dims: width between the two products.
        activation: applied there.
        dropout: applied to the hidden values.
    """

    hidden_dims: int
    activation: Activation = 'gelu'
    dropout: Dropout | None = None

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        hidden_BTF = activate(self.project_in('up', x_BTD), self.activation)
        return self.project_out(hidden_BTF, x_BTD.shape[-1])

    def project_in(self, name: str, x_BTD: jax.Array) -> jax.Array:
        return x_BTD @ self.param(name, (x_BTD.shape[-1], self.hidden_dims), ('embed', 'mlp'))

    def project_out(self, hidden_BTF: jax.Array, dims: int) -> jax.Array:
        hidden_BTF = self.constrain(hidden_BTF, ('batch', 'length', 'mlp'))
        if self.dropout is not None:
            hidden_BTF = self.dropout(hidden_BTF)
        x_BTD = hidden_BTF @ self.param('down', (self.hidden_dims, dims), ('mlp', 'embed'))
        return self.constrain(x_BTD, ('batch', 'length', 'features'))


class GatedFeedForward(FeedForward):
    """(activation(x @ gate) * (x @ up)) @ down. Shazeer 2020."""

    activation: Activation = 'silu'

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        gate_BTF = activate(self.project_in('gate', x_BTD), self.activation)
        return self.project_out(gate_BTF * self.project_in('up', x_BTD), x_BTD.shape[-1])
