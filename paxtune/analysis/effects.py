"""Effects of decisions by the Gaussian process of a study: one or two at a time, and Sobol indices.

Effects are measured around the best trial: its other decisions stay fixed. Decisions of inactive
branches have no effect there.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from paxtune.algorithms.encoding.scaling import from_unit
from paxtune.analysis.surrogate import Predictions, Surrogate
from paxtune.search_space.decisions import decision_points, slots
from paxtune.search_space.labels import parameter_path

if TYPE_CHECKING:
    from paxtune.algorithms.encoding.unit_cube import Feature
    from paxtune.search_space.space import Space

Array: TypeAlias = np.ndarray

_POINTS = 50  # Positions on a range, in one dimension.
_CELLS = 25  # Positions on a range, along each of two dimensions.
_SAMPLES = 2048  # For Sobol indices of all decisions together: a power of two for each.
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Values:
    """Values of a decision, and their coordinates.

    Attributes:
        path: the decision.
        feature: its index in the flat space.
        units: coordinates in the unit cube: [values], float64.
        numbers: the numbers of a range: [values]; indices of `labels` for a choice.
        labels: names of candidates; empty for a range.
        is_log: whether the range has a logarithmic scale.
        best: the number or index of the best trial.
    """

    path: str
    feature: int
    units: Array
    numbers: Array
    labels: tuple[str, ...]
    is_log: bool
    best: float


@dataclasses.dataclass(frozen=True)
class Effect:
    """Predictions along one decision.

    Attributes:
        values: the values of the decision.
        predicted: the predictions: [values].
    """

    values: Values
    predicted: Predictions


@dataclasses.dataclass(frozen=True)
class Surface:
    """Predictions over two decisions.

    Attributes:
        x: the values of the first decision.
        y: the values of the second one.
        mean: the predictions: [values of y, values of x], float64.
        width: the widths of their intervals of 95 %: [values of y, values of x].
    """

    x: Values
    y: Values
    mean: Array
    width: Array


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """Sobol indices of a decision: shares of the variance of the predictions.

    Attributes:
        path: the decision.
        first: the share that the decision explains alone.
        total: the share that it explains alone and by interactions.
        trend: the correlation of the predictions with the decision, from -1 to 1; NaN for a choice
            between things without an order.
    """

    path: str
    first: float
    total: float
    trend: float


class _Uniform:
    """The uniform distribution from 0 to 1, for SciPy."""

    def ppf(self, shares: Array) -> Array:
        return shares


def effect(model: Surrogate, space: 'Space', path: str) -> Effect | None:
    """Predicts along a decision; None if the best trial does not have it."""
    values = _values(model, space, path, _POINTS)
    if values is None:
        return None
    rows = np.tile(model.rows([model.best]), (len(values.units), 1))
    rows[:, values.feature] = values.units
    return Effect(values, model.predict(rows))


def surface(model: Surrogate, space: 'Space', x: str, y: str) -> Surface | None:
    """Predicts over two decisions; None if the best trial lacks one of them."""
    pair = [_values(model, space, path, _CELLS) for path in (x, y)]
    if pair[0] is None or pair[1] is None:
        return None
    across, up = pair[0], pair[1]
    shape = len(up.units), len(across.units)
    rows = np.tile(model.rows([model.best]), (shape[0] * shape[1], 1))
    rows[:, across.feature] = np.tile(across.units, shape[0])
    rows[:, up.feature] = np.repeat(up.units, shape[1])
    found = model.predict(rows)
    return Surface(across, up, found.mean.reshape(shape), (found.high - found.low).reshape(shape))


def paths_of_best(model: Surrogate) -> list[str]:
    """Lists the decisions of the best trial, in the order of the space."""
    active = model.best.by_id
    return list(dict.fromkeys(parameter_path(e.id) for e in model.space.features if e.id in active))


def largest_effects(model: Surrogate, space: 'Space') -> list[str]:
    """Lists the decisions of the best trial, that with the largest effect first."""
    found = [each for path in paths_of_best(model) if (each := effect(model, space, path))]
    found.sort(key=lambda each: -float(np.ptp(each.predicted.mean)))
    return [each.values.path for each in found]


def sensitivities(model: Surrogate) -> list[Sensitivity]:
    """Computes the Sobol indices of all decisions; the largest total first.

    Decisions are drawn uniformly, each on its own scale. Indices of decisions that have the same
    path are added.
    """
    from scipy.stats import sobol_indices

    def mean(columns: Array) -> Array:
        found: Array = model.predict(np.clip(columns.T, 0.0, 1.0)).mean
        return found

    count = len(model.space)
    samples = max(64, 2 ** int(np.log2(_SAMPLES / (count + 2))))
    with np.errstate(invalid='ignore', divide='ignore'):  # The mean may be constant.
        found = sobol_indices(
            func=mean, n=samples, dists=[_Uniform()] * count, rng=np.random.default_rng(_SEED)
        )
    first, total = (
        np.nan_to_num(np.ravel(each)) for each in (found.first_order, found.total_order)
    )
    by_path: dict[str, Sensitivity] = {}
    for index, feature in enumerate(model.space.features):
        path = parameter_path(feature.id)
        old = by_path.get(path, Sensitivity(path, 0.0, 0.0, np.nan))
        # A share below 0 or above 1 is an error of the samples.
        shares = np.clip([old.first + first[index], old.total + total[index]], 0.0, 1.0)
        trend = _trend(feature, index, count, mean)
        by_path[path] = Sensitivity(path, float(shares[0]), float(shares[1]), trend)
    return sorted(by_path.values(), key=lambda each: -each.total)


def _trend(feature: 'Feature', index: int, count: int, mean: Callable[[Array], Array]) -> float:
    if feature.kind == 'category':
        return np.nan
    drawn = np.random.default_rng(_SEED).random((count, 256))
    found = mean(drawn)
    return float(np.corrcoef(drawn[index], found)[0, 1]) if np.ptp(found) else 0.0


def _values(model: Surrogate, space: 'Space', path: str, most: int) -> Values | None:
    """The values of a decision, in order; None if the best trial does not have it."""
    best = model.best.by_id
    for index, feature in enumerate(model.space.features):
        if parameter_path(feature.id) == path and feature.id in best:
            return _of(model, space, index, feature, best[feature.id], most)
    return None


def _of(
    model: Surrogate, space: 'Space', index: int, feature: 'Feature', best: float, most: int
) -> Values:
    path = parameter_path(feature.id)
    if feature.kind == 'number':
        spec = model.space.ranges[feature.id]
        units = np.linspace(0.0, 1.0, most)
        numbers = np.array([from_unit(spec, unit) for unit in units], float)
        is_log = spec.min_value > 0 and spec.scale == 'log'
        return Values(path, index, units, numbers, (), is_log, float(best))
    names = _candidate_names(model, space, feature.id)
    count = len(feature.order)
    labels = tuple(names[candidate] for candidate in feature.order)
    units, cells = (np.arange(count) + 0.5) / count, np.arange(count, dtype=float)
    return Values(path, index, units, cells, labels, False, float(feature.order.index(int(best))))


def _candidate_names(model: Surrogate, space: 'Space', id_: str) -> Sequence[str]:
    return next(
        list(map(str, space.candidate_names(slot)))
        for point in decision_points(model.space.spec)
        for slot in slots(point)
        if slot.id.path == id_
    )
