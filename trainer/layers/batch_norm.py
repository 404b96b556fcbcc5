import math

import jax
import jax.numpy as jnp
from flax.linen import initializers

from trainer.layers.normalization import Normalization
from trainer.symbolic.component import Number, require_fraction
from trainer.symbolic.errors import ShapeError
from trainer.symbolic.usual_values import UsualValue


class BatchNorm(Normalization):
    """(x - mean) / std * (1 + scale) + bias over the batch: [B, ..., D] -> [B, ..., D].

    Ioffe & Szegedy 2015. In training, mean and standard deviation of a feature are over the global
    batch, on any mesh, and over the positions of an image. Examples of weight zero are left out.
    Evaluation uses running statistics. With microbatches, each of them updates these in turn.

    Attributes:
        momentum: share of the running statistics that a step (a microbatch) keeps. They start at 0
            for means and 1 for variances, so a run must be several times 1 / (1 - momentum) steps
            long.
    """

    momentum: Number = 0.9

    usual = {
        'momentum': UsualValue(0.9, 0.9, 0.99, '0.9: Goyal et al. 2017; 0.99: EfficientNet'),
        'epsilon': UsualValue(1e-5, 1e-5, 1e-3, 'He et al. 2016; 1e-3: EfficientNet'),
    }

    def check(self) -> None:
        super().check()
        require_fraction(self, 'momentum')

    def forward(self, x: jax.Array) -> jax.Array:
        shape = x.shape[-1:]
        scale, bias = self.vector('scale', x), self.vector('bias', x)
        wide = x.astype(jnp.float32)
        mean, variance = self.state('mean', shape), self.state('variance', shape, initializers.ones)
        if self.training:
            mean, variance = self._of_batch(wide, mean, variance)
        factor = jax.lax.rsqrt(variance + self.epsilon) * (1 + scale)
        return ((wide - mean) * factor + bias).astype(x.dtype)

    def _of_batch(
        self, x: jax.Array, running_mean: jax.Array, running_variance: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        there, count = self._counted(x)
        axes = tuple(range(x.ndim - 1))
        total = jnp.maximum(count, 1)
        # Two passes: the mean of squares minus the square of the mean cancels small variances.
        mean = jnp.sum(x * there, axes) / total
        variance = jnp.sum(jnp.square(x - mean) * there, axes) / total
        # A batch of padding alone changes nothing.
        kept = jnp.where(count > 0, self.momentum, 1.0)
        self.set_state('mean', kept * running_mean + (1 - kept) * mean)
        self.set_state('variance', kept * running_variance + (1 - kept) * variance)
        return mean, variance

    def _counted(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """1 where an element counts, and the number of them for each feature."""
        weights = self.example_weights
        if weights is None:
            return jnp.ones((), jnp.float32), jnp.float32(math.prod(x.shape[:-1]))
        if x.shape[: weights.ndim] != weights.shape:
            raise ShapeError(
                f'{self.sym_path}: the shape of the example weights, {weights.shape}, does not '
                f'match the first axes of the input, {x.shape}'
            )
        there = (weights > 0).astype(jnp.float32)
        count = jnp.sum(there) * math.prod(x.shape[weights.ndim : -1])
        return there.reshape(*there.shape, *(1,) * (x.ndim - there.ndim)), count
