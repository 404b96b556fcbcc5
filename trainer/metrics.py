"""Metrics that aggregate exactly over uneven batches: totals with their weights."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp


class WeightedScalar(NamedTuple):
    """A weighted mean, kept as what it is a quotient of.

    Attributes:
        total: the weighted sum of the values, float32 scalar.
        weight: the sum of the weights, float32 scalar.
    """

    total: jax.Array
    weight: jax.Array

    @classmethod
    def of(cls, values: jax.Array, weights: jax.Array) -> 'WeightedScalar':
        """The mean of `values` weighted by `weights`, arrays of one shape."""
        return cls(jnp.sum(values * weights), jnp.sum(weights))

    @property
    def mean(self) -> jax.Array:
        return self.total / jnp.maximum(self.weight, 1e-12)


Metrics = dict[str, WeightedScalar]


class Totals:
    """Weighted scalars summed over batches, in float64 and in order, so that sums are exact.

    Example:
        >>> totals = Totals()
        >>> totals.add({'loss': WeightedScalar(6.0, 2.0)})
        >>> totals.add({'loss': WeightedScalar(1.0, 1.0)})
        >>> totals.means()
        {'loss': 2.3333333333333335}
    """

    def __init__(self, sums: Mapping[str, Sequence[float]] | None = None) -> None:
        self.sums = {name: (float(t), float(w)) for name, (t, w) in (sums or {}).items()}

    def add(self, metrics: Mapping[str, WeightedScalar]) -> None:
        """Adds the metrics of a batch, which are on the host."""
        for name, metric in metrics.items():
            total, weight = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = (total + float(metric.total), weight + float(metric.weight))

    def means(self) -> dict[str, float]:
        """The weighted means; a metric whose weights are all zero has none."""
        return {name: total / weight for name, (total, weight) in self.sums.items() if weight}
