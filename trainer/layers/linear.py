from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.layers.base import Layer
from trainer.layers.initialization import Initializer
from trainer.symbolic.component import require_positive


class Linear(Layer):
    """x @ kernel (+ bias): [..., D] -> [..., output_dims].

    The result is float32 where it is the output of the model. Another layer that makes the outputs
    of a model calls `self.head.call('logits', x)`.

    Attributes:
        output_dims: size of the last axis of the result.
        bias: 'zeros' adds a bias that starts at zero, 'none' adds none.
        axes: logical axes of the kernel, input first.
        init: of a new kernel; None for a normal distribution of deviation 1 / sqrt(inputs).
    """

    is_pointwise = True

    output_dims: int
    bias: Literal['none', 'zeros'] = 'none'
    axes: list[str] = ['embed', 'mlp']
    init: Initializer | None = None

    def check(self) -> None:
        require_positive(self, 'output_dims')

    def forward(self, x: jax.Array) -> jax.Array:
        return self.logits(x) if self.makes_outputs else self._product(x, None)

    def logits(self, x: jax.Array) -> jax.Array:
        """The same in float32, also where the computations of layers have another dtype."""
        return self._product(x, jnp.float32)

    def _product(self, x: jax.Array, dtype: Any) -> jax.Array:
        shape, axes = (x.shape[-1], self.output_dims), tuple(self.axes)
        kernel = self.param('kernel', shape, axes, self.init, is_output=dtype is not None)
        y = self.product('...d,df->...f', x, kernel, dtype)
        if self.bias == 'none':
            return y
        return y + self.param('bias', shape[1:], axes[1:], initializers.zeros, decay=False)
