"""Linear layers and activations."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.component import require_positive
from trainer.layers.base import Layer

Activation = Literal['gelu', 'relu', 'squared_relu', 'silu', 'tanh', 'identity']


def activate(x: jax.Array, activation: Activation) -> jax.Array:
    """Applies an activation by its name; 'squared_relu' is that of Primer (So et al. 2021).

    Example:
        >>> activate(jnp.array([-1.0, 2.0]), 'relu').tolist()
        [0.0, 2.0]
    """
    functions = {
        'gelu': jax.nn.gelu,
        'relu': jax.nn.relu,
        'squared_relu': lambda x: jnp.square(jax.nn.relu(x)),
        'silu': jax.nn.silu,
        'tanh': jnp.tanh,
        'identity': lambda x: x,
    }
    return functions[activation](x)


class Linear(Layer):
    """x @ kernel (+ bias): [..., D] -> [..., output_dims].

    Attributes:
        output_dims: size of the last axis of the result.
        bias: 'zeros' adds a bias that starts at zero, 'none' adds none.
        axes: logical axes of the kernel, input first.
    """

    output_dims: int
    bias: Literal['none', 'zeros'] = 'none'
    axes: list[str] = ['embed', 'mlp']

    def check(self) -> None:
        require_positive(self, 'output_dims')

    def forward(self, x: jax.Array) -> jax.Array:
        kernel = self.param('kernel', (x.shape[-1], self.output_dims), tuple(self.axes))
        y = x @ kernel
        if self.bias == 'none':
            return y
        axes = (self.axes[-1],)
        return y + self.param('bias', (self.output_dims,), axes, initializers.zeros, decay=False)
