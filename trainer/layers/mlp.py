from typing import Any

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.layers.activations import Activation, activate
from trainer.layers.base import Layer
from trainer.layers.dropout import Dropout
from trainer.layers.initialization import Initializer, KernelInit
from trainer.symbolic.component import require_positive


class Mlp(Layer):
    """Multi-layer perceptron: [..., D] -> [..., output_dims].

    Attributes:
        hidden_dims: width of each hidden layer; [] for a linear model.
        output_dims: size of the last axis of the result.
        activation: applied after each hidden layer.
        dropout: applied after each activation.
        init: of new kernels; None for a normal distribution of variance 2 / inputs, for rectifiers
            (He et al. 2015).
    """

    is_pointwise = True

    hidden_dims: list[int]
    output_dims: int
    activation: Activation = 'relu'
    dropout: Dropout | None = None
    init: Initializer | None = None

    def check(self) -> None:
        require_positive(self, 'output_dims')
        if self.hidden_dims and min(self.hidden_dims) < 1:
            raise ValueError(f'hidden_dims must be positive: {list(self.hidden_dims)}')

    def forward(self, x: jax.Array) -> jax.Array:
        x = jnp.asarray(x, self.dtype)
        for i, dims in enumerate(self.hidden_dims):
            # The input may have any size, such as the number of pixels: it is not sharded.
            x = self._linear(f'hidden_{i}', x, dims, ('embed' if i else 'features', 'mlp'))
            x = activate(x, self.activation)
            x = x if self.dropout is None else self.dropout(x)
        wide = jnp.float32 if self.makes_outputs else None
        return self._linear('output', x, self.output_dims, ('features', 'classes'), wide)

    def _linear(
        self, name: str, x: jax.Array, dims: int, axes: tuple[str, str], dtype: Any = None
    ) -> jax.Array:
        init = KernelInit(self.init, gain=2.0)
        kernel = self.param(f'{name}_kernel', (x.shape[-1], dims), axes, init)
        bias = self.param(f'{name}_bias', (dims,), axes[1:], initializers.zeros, decay=False)
        return self.product('...d,df->...f', x, kernel, dtype) + bias
