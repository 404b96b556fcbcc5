import math

import jax

from trainer.layers.activations import Activation, activate
from trainer.layers.base import Layer


class Chain(Layer):
    """`layers[-1](… layers[0](x))`; each layer may change the shape.

    For deep models of equal layers use `Stack`, which compiles one layer for all of them.

    Example:
        >>> from trainer.layers import Conv2D, Linear, Pool2D
        >>> model = Chain([Conv2D(8), Activate('relu'), Pool2D(), Flatten(), Linear(10)])
        >>> variables = model.module().init(
        ...     {'params': jax.random.key(0)}, jax.numpy.ones((1, 8, 8, 1))
        ... )
        >>> list(variables['params'])
        ['layers_0', 'layers_4']

    Attributes:
        layers: each takes the result of the previous layer.
    """

    layers: list[Layer]

    def forward(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x

    def passes_on(self, child: Layer) -> bool:
        return child is self.layers[-1]


class Activate(Layer):
    """An activation as a layer."""

    is_pointwise = True

    activation: Activation = 'relu'

    def forward(self, x: jax.Array) -> jax.Array:
        return activate(x, self.activation)


class Flatten(Layer):
    """Flattens the features of each example: [B, ...] -> [B, D]."""

    def forward(self, x: jax.Array) -> jax.Array:
        return x.reshape(len(x), math.prod(x.shape[1:]))
