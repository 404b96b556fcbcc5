"""Decisions of trials as columns of numbers, and mean values over two of them."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyglove as pg

from paxtune.analysis.importance import importances
from paxtune.search_space.decisions import (
    DecisionPoint,
    decision_points,
    numeric_candidates,
    slots,
)
from paxtune.search_space.labels import parameter_path

if TYPE_CHECKING:
    from paxtune.search_space.space import Space
    from paxtune.study.study_view import StudyView
    from paxtune.study.trial import Trial

MAX_DECISIONS = 10
"""Decisions that a figure has unless they are named: the most important ones."""

_MIN_CELLS, _MAX_CELLS = 6, 25
"""Cells of a plane, along each axis."""


@dataclasses.dataclass(frozen=True)
class DecisionColumn:
    """The values of trials for one decision, as numbers.

    Attributes:
        path: the decision.
        name: its short name.
        values: [trials], float64: numbers, or indices of labels; NaN if inactive.
        labels: names of candidates; empty for a range.
        is_log: whether the range has a logarithmic scale.
        low: the lower bound of the range; 0 for a choice.
        high: the upper bound of the range, or the largest index of a label.
    """

    path: str
    name: str
    values: np.ndarray
    labels: tuple[str, ...]
    is_log: bool
    low: float
    high: float

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Values on the scale of the decision: logarithms to base 10, or themselves."""
        return np.log10(values) if self.is_log else values

    def cells(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Divides the decision: the middles of `count` cells, and their edges on its scale.

        A choice has a cell for each candidate.
        """
        if self.labels:
            return np.arange(len(self.labels), dtype=float), np.arange(len(self.labels) + 1) - 0.5
        low, high = self.scaled(np.array([self.low, self.high]))
        # Rounding must not push a bound out of its cell.
        margin = 1e-9 * max(abs(low), abs(high))
        edges = np.linspace(low - margin, high + margin, count + 1)
        middles = (edges[:-1] + edges[1:]) / 2
        return (10.0**middles if self.is_log else middles), edges

    def at(self, index: int) -> str:
        """The value of a trial for people; '' if inactive."""
        value = self.values[index]
        if np.isnan(value):
            return ''
        return self.labels[int(value)] if self.labels else f'{value:.6g}'


def decision_columns(space: 'Space', trials: 'Sequence[Trial]') -> list[DecisionColumn]:
    """Makes a column for each decision, in the order of the space.

    Decisions of several branches that have the same path share a column.
    """
    # A range and a choice of one path have a column each.
    found: dict[tuple[str, bool], _Merged] = {}
    by_id: dict[str, tuple[_Merged, list[int]]] = {}
    for point in decision_points(space.spec):
        for slot in slots(point):
            key = parameter_path(slot.id.path), isinstance(slot, pg.geno.Float)
            merged = found.setdefault(key, _Merged(len(trials)))
            by_id[slot.id.path] = merged, merged.add(space, slot)
    for row, trial in enumerate(trials):
        for id_, value in trial.by_id.items():
            merged, codes = by_id[id_]
            merged.values[row] = codes[int(value)] if codes else value
    return [merged.column(path, space.short_names[path]) for (path, _), merged in found.items()]


class _Merged:
    """A column under construction: the decision points of one path."""

    def __init__(self, num_trials: int) -> None:
        self.values = np.full(num_trials, np.nan)
        self._labels: list[str] = []
        self._ranges: list[pg.geno.Float] = []

    def add(self, space: 'Space', slot: DecisionPoint) -> list[int]:
        """Adds a decision point; returns the code of each candidate, none for a range."""
        if isinstance(slot, pg.geno.Float):
            self._ranges.append(slot)
            return []
        names = list(map(str, space.candidate_names(slot)))
        numbers = numeric_candidates(slot)
        ordered = sorted(names, key=lambda each: numbers[names.index(each)]) if numbers else names
        self._labels = list(dict.fromkeys([*self._labels, *ordered]))
        return list(map(self._labels.index, names))

    def column(self, path: str, name: str) -> DecisionColumn:
        """Finishes the column."""
        if not self._ranges:
            labels = tuple(self._labels)
            return DecisionColumn(path, name, self.values, labels, False, 0.0, len(labels) - 1.0)
        low = min(each.min_value for each in self._ranges)
        high = max(each.max_value for each in self._ranges)
        is_log = low > 0 and all(each.scale == 'log' for each in self._ranges)
        return DecisionColumn(path, name, self.values, (), is_log, low, high)


def selected(
    study: 'StudyView',
    columns: Sequence[DecisionColumn],
    names: Iterable[str] | None,
    reward: str | None,
    most: int = MAX_DECISIONS,
) -> list[DecisionColumn]:
    """Selects columns by path or short name; the most important ones where none are named.

    Raises:
        UserError: there is no such decision.
    """
    by_path: Mapping[str, DecisionColumn] = {each.path: each for each in columns}
    if names is not None:
        return [by_path[study.space.named(name)] for name in names]
    if len(columns) <= most:
        return list(columns)
    order = [each.path for each in importances(study, reward).decisions[:most]]
    return [by_path[path] for path in order] or list(columns[:most])


def pair_of(
    study: 'StudyView',
    columns: Sequence[DecisionColumn],
    x: str | None,
    y: str | None,
    reward: str | None,
) -> list[DecisionColumn]:
    """Selects two columns by path or short name; the most important others for those not named."""
    named = {name: selected(study, columns, [name], reward)[0] for name in (x, y) if name}
    if x and y:  # Importance takes longer than a figure.
        return [named[x], named[y]]
    taken = [column.path for column in named.values()]
    ranked = selected(study, columns, None, reward, 2)
    others = iter([each for each in ranked if each.path not in taken])
    pair = [named[name] if name else next(others, None) for name in (x, y)]
    return [column for column in pair if column is not None]


@dataclasses.dataclass(frozen=True)
class Plane:
    """Mean values of trials over two decisions.

    Attributes:
        x: the middles of cells along the first decision.
        y: the middles of cells along the second one.
        means: [values of y, values of x], float64; NaN where no trial is.
    """

    x: np.ndarray
    y: np.ndarray
    means: np.ndarray


def plane_of(pair: Sequence[DecisionColumn], rows: np.ndarray, values: np.ndarray) -> Plane:
    """Computes the mean of each cell of a plane, from values of the rows of two columns."""
    # Cells of few trials would mostly be empty.
    count = int(np.clip(len(rows) ** 0.5, _MIN_CELLS, _MAX_CELLS))
    (x, x_edges), (y, y_edges) = (column.cells(count) for column in pair)
    along, up = (column.scaled(column.values[rows]) for column in pair)
    bins: Any = [x_edges, y_edges]
    sums, _, _ = np.histogram2d(along, up, bins, weights=values)
    counts, _, _ = np.histogram2d(along, up, bins)
    with np.errstate(invalid='ignore', divide='ignore'):
        return Plane(x, y, (sums / counts).T)
