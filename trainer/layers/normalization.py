"""Normalizations over the last axis, computed in float32."""

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.layers.base import Layer
from trainer.symbolic.component import Number, require_above_zero
from trainer.symbolic.usual_values import UsualValue


class Normalization(Layer):
    """Base of normalizations: [..., D] -> [..., D].

    Attributes:
        epsilon: keeps the division finite.
    """

    is_pointwise = True

    epsilon: Number = 1e-6

    usual = {'epsilon': UsualValue(1e-6, 1e-6, 1e-5, 'T5, LLaMA; 1e-5: GPT-2, Llama 2')}

    def check(self) -> None:
        require_above_zero(self, 'epsilon')

    def vector(self, name: str, x: jax.Array) -> jax.Array:
        """A float32 parameter with a number for each feature of `x`, zeros at first.

        Bfloat16 would round a scale after 1 is subtracted: one near 0 would lose its digits.
        """
        shape, axes = x.shape[-1:], ('norm',)
        return self.param(name, shape, axes, initializers.zeros, decay=False, keep_float32=True)


class RMSNorm(Normalization):
    """x / rms(x) * (1 + scale). Zhang & Sennrich 2019."""

    def forward(self, x: jax.Array) -> jax.Array:
        scale = self.vector('scale', x)
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normalized = wide * jax.lax.rsqrt(mean_square + self.epsilon)
        return (normalized * (1 + scale)).astype(x.dtype)


class LayerNorm(Normalization):
    """(x - mean(x)) / std(x) * (1 + scale) + bias. Ba et al. 2016."""

    def forward(self, x: jax.Array) -> jax.Array:
        scale, bias = self.vector('scale', x), self.vector('bias', x)
        wide = x.astype(jnp.float32)
        centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
        normalized = centered * jax.lax.rsqrt(variance + self.epsilon)
        scaled = normalized * (1 + scale) + bias
        return scaled.astype(x.dtype)
