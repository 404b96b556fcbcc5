"""Activations, by name or as components."""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.symbolic.component import Number
from trainer.symbolic.usual_values import UsualValue


class ActivationFunction(Layer):
    """Base of activations with fields or parameters: an array -> an array of its shape.

    A layer that applies its activation several times has one set of its parameters.
    """

    is_pointwise = True

    def of(self, x: jax.Array) -> jax.Array:
        """The activations of `x`. `param` and the other methods of a layer work inside."""
        raise NotImplementedError(type(self).__name__)

    def forward(self, x: jax.Array) -> jax.Array:
        return self.of(x)


class LeakyRelu(ActivationFunction):
    """x where it is positive, else slope * x. Maas et al. 2013.

    Attributes:
        slope: of the negative part. The name 'leaky_relu' stands for 0.01.
    """

    slope: Number = 0.01

    usual = {'slope': UsualValue(0.01, 0.01, 0.2, 'Maas et al. 2013; 0.2: Radford et al. 2016')}

    def of(self, x: jax.Array) -> jax.Array:
        return jax.nn.leaky_relu(x, self.slope)


ActivationName = Literal[
    'gelu',
    'gelu_exact',
    'relu',
    'relu6',
    'leaky_relu',
    'squared_relu',
    'cubed_relu',
    'silu',
    'sigmoid',
    'softplus',
    'exp',
    'tanh',
    'identity',
]
"""`gelu` is the approximation by tanh (Hendrycks & Gimpel 2016); `silu` is also called swish."""

Activation = ActivationName | ActivationFunction


def activate(x: jax.Array, activation: Activation) -> jax.Array:
    """Applies an activation; 'squared_relu' is from Primer (So et al. 2021).

    Args:
        activation: a name, or a component of the running layer.

    Example:
        >>> activate(jnp.array([-1.0, 2.0]), 'relu').tolist()
        [0.0, 2.0]
    """
    if isinstance(activation, ActivationFunction):
        y: jax.Array = activation(x)
        return y
    functions: dict[ActivationName, Callable[[jax.Array], jax.Array]] = {
        'gelu': jax.nn.gelu,
        'gelu_exact': functools.partial(jax.nn.gelu, approximate=False),
        'relu': jax.nn.relu,
        'relu6': jax.nn.relu6,
        'leaky_relu': jax.nn.leaky_relu,
        'squared_relu': lambda x: jnp.square(jax.nn.relu(x)),
        'cubed_relu': lambda x: jax.nn.relu(x) ** 3,
        'silu': jax.nn.silu,
        'sigmoid': jax.nn.sigmoid,
        'softplus': jax.nn.softplus,
        'exp': jnp.exp,
        'tanh': jnp.tanh,
        'identity': lambda x: x,
    }
    return functions[activation](x)
