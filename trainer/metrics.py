"""Metrics that aggregate exactly over uneven batches and hosts.

A metric keeps sums; its value is computed from them at the very end.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from trainer.symbolic.errors import ShapeError, UserError

V = TypeVar('V')


class Metric(flax.struct.PyTreeNode):
    """Sums over the examples of a batch; sums of several batches add up, array by array.

    Subclasses are data classes whose fields are arrays. They define the value of the sums.
    """

    kinds: ClassVar[dict[str, type['Metric']]] = {}
    """All subclasses by name."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Metric.kinds[cls.__name__] = cls

    def value(self) -> float | None:
        """The value of float64 sums on the host; None where it is undefined, without examples."""
        raise NotImplementedError(type(self).__name__)


class WeightedScalar(Metric):
    """A weighted mean, stored as numerator and denominator.

    Attributes:
        total: the weighted sum of the values, float32 scalar.
        weight: the sum of the weights, float32 scalar.
    """

    total: Any
    weight: Any

    @classmethod
    def of(cls, values: jax.Array, weights: jax.Array) -> 'WeightedScalar':
        """The mean of `values` weighted by `weights`, arrays of equal shape.

        Raises:
            ShapeError: the shapes differ, and a product would have the shape of neither.
        """
        if weights is None:
            raise ShapeError('there are no weights: give one for each value, as outcome.weights')
        if jnp.shape(values) != jnp.shape(weights):
            raise ShapeError(
                f'values of shape {jnp.shape(values)} need weights of the same shape, not '
                f'{jnp.shape(weights)}: is the loss or the measure one value for each example?'
            )
        return cls(jnp.sum(weighted(values, weights)), jnp.sum(weights))

    @property
    def mean(self) -> jax.Array:
        return self.total / jnp.maximum(self.weight, 1e-12)

    def value(self) -> float | None:
        return float(self.total / self.weight) if self.weight else None


def require_metric(value: Any, where: str) -> None:
    """Raises UserError unless a value is a metric; `where` is the subject of the message."""
    if not isinstance(value, Metric):
        raise UserError(
            f'{where} must be a Metric, such as WeightedScalar.of(values, weights), not '
            f'{_kind(value)}'
        )


def _kind(value: Any) -> str:
    shape = getattr(value, 'shape', None)
    return type(value).__name__ if shape is None else f'an array of shape {tuple(shape)}'


class Count(Metric):
    """A count of events.

    Attributes:
        total: float32 scalar.
    """

    total: Any

    def value(self) -> float | None:
        return float(self.total)


Metrics = dict[str, Any]
"""Metrics by name."""


def weighted(values: jax.Array, weights: jax.Array | float) -> jax.Array:
    """Values times weights; 0 where the weight is 0, also for a value that is not finite."""
    return jnp.where(jnp.asarray(weights) == 0, 0.0, values) * weights


def without_padding(values: jax.Array, weights: jax.Array) -> jax.Array:
    """The values; 0 for those of weight 0 that are not finite: a gradient would have 0 * NaN.

    Example:
        >>> without_padding(jnp.array([[jnp.nan, 1.0], [2.0, jnp.nan]]), jnp.array([0.0, 1.0]))
        Array([[ 0.,  1.],
               [ 2., nan]], dtype=float32)
    """
    if not jnp.issubdtype(values.dtype, jnp.inexact):
        return values  # All are finite.
    if values.shape[: weights.ndim] != weights.shape:
        return values  # The loss names both shapes.
    wide = weights.reshape(*weights.shape, *(1,) * (values.ndim - weights.ndim))
    return jnp.where((wide == 0) & ~jnp.isfinite(values), 0, values)


def with_nan(values: Mapping[str, float | None]) -> dict[str, float]:
    """The values of metrics, NaN where one is undefined."""
    return {name: math.nan if value is None else value for name, value in values.items()}


def joined(*parts: Mapping[str, V]) -> dict[str, V]:
    """The values of all parts; raises ValueError if one would hide another of its name."""
    names = [name for part in parts for name in part]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f'several metrics are called {", ".join(twice)}: name them differently')
    return {name: value for part in parts for name, value in part.items()}


def rows(stacked: Any, count: int) -> list[Any]:
    """The trees of arrays that are stacked in one; a single one is not stacked.

    Example:
        >>> rows({'loss': np.array([3.0, 2.0])}, count=2)
        [{'loss': np.float64(3.0)}, {'loss': np.float64(2.0)}]
    """
    if count == 1:
        return [stacked]
    return [jax.tree.map(lambda leaf, row=row: leaf[row], stacked) for row in range(count)]


class Totals:
    """Metrics summed over batches, in float64 and in order.

    Example:
        >>> totals = Totals()
        >>> totals.add({'loss': WeightedScalar(6.0, 2.0)})
        >>> totals.add({'loss': WeightedScalar(1.0, 1.0)})
        >>> totals.values()
        {'loss': 2.3333333333333335}
        >>> Totals(totals.to_json()).values()
        {'loss': 2.3333333333333335}
    """

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        """Starts at zero, or from the result of `to_json`."""
        self._sums: dict[str, Metric] = {}
        for name, each in (saved or {}).items():
            fields = {key: np.asarray(value, np.float64) for key, value in each['sums'].items()}
            self._sums[name] = Metric.kinds[each['kind']](**fields)

    def add(self, metrics: Mapping[str, Metric]) -> None:
        """Adds the metrics of a batch, as arrays on the host."""
        for name, metric in metrics.items():
            metric = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), metric)
            known = self._sums.get(name)
            self._sums[name] = metric if known is None else jax.tree.map(np.add, known, metric)

    def values(self) -> dict[str, float]:
        """The values of the metrics that have examples."""
        return {name: value for name, value in self.all_values().items() if value is not None}

    def all_values(self) -> dict[str, float | None]:
        """The values of all metrics: None where one is undefined, as the AUC of one class."""
        return {name: metric.value() for name, metric in self._sums.items()}

    def to_json(self) -> dict[str, Any]:
        """The sums as JSON data."""
        return {
            name: {
                'kind': type(metric).__name__,
                'sums': {key: value.tolist() for key, value in vars(metric).items()},
            }
            for name, metric in self._sums.items()
        }
