from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.learner.norms import map_layers
from trainer.symbolic import recipes
from trainer.symbolic.component import Component, Number, require_above_zero

_TINY = 1e-12


class Clipping(Component):
    """Limits the gradients of a step before the optimizer sees them."""

    def clip(self, gradients: Any, norm: jax.Array) -> Any:
        """The clipped gradients.

        Args:
            gradients: of the parameters of one optimizer.
            norm: the global norm of the gradients of all optimizers.
        """
        raise NotImplementedError(type(self).__name__)


class GlobalNorm(Clipping):
    """Scales all gradients down together where their global norm exceeds `max_norm`.

    Attributes:
        max_norm: the largest norm that is left alone.
        per_optimizer: scales the gradients of each optimizer by their own norm.
    """

    max_norm: Number
    per_optimizer: bool = False

    usual = {'max_norm': recipes.CLIP_NORM}

    def check(self) -> None:
        require_above_zero(self, 'max_norm')

    def clip(self, gradients: Any, norm: jax.Array) -> Any:
        own = optax.tree.norm(gradients) if self.per_optimizer else norm
        scale = jnp.minimum(1.0, self.max_norm / jnp.maximum(own, _TINY))
        return jax.tree.map(lambda x: x * scale, gradients)


class ParameterNorm(Clipping):
    """Scales the gradient of each parameter of each layer down to the norm `max_norm`."""

    max_norm: Number

    def check(self) -> None:
        require_above_zero(self, 'max_norm')

    def clip(self, gradients: Any, norm: jax.Array) -> Any:
        def scaled(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
            own = jnp.sqrt(jnp.sum(jnp.square(x), axes, keepdims=True))
            return x * jnp.minimum(1.0, self.max_norm / jnp.maximum(own, _TINY))

        return map_layers(scaled, gradients)


class Elementwise(Clipping):
    """Clips each element of each gradient to [-max_value, max_value]."""

    max_value: Number

    def check(self) -> None:
        require_above_zero(self, 'max_value')

    def clip(self, gradients: Any, norm: jax.Array) -> Any:
        return jax.tree.map(lambda x: jnp.clip(x, -self.max_value, self.max_value), gradients)


def clip_rms(tree: Any, max_rms: jax.Array | float) -> Any:
    """Scales each array of each layer down to the root mean square `max_rms`."""

    def scaled(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
        rms = jnp.sqrt(jnp.mean(jnp.square(x), axes, keepdims=True))
        return x / jnp.maximum(1.0, rms / max_rms)

    return map_layers(scaled, tree)
