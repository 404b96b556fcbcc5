"""Columns of trials for figures: pure functions of what was read of a study."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyglove as pg

from paxtune.analysis.importance import importances
from paxtune.analysis.trade_off import Axis, axis_of, value_at, value_of_trial
from paxtune.plots import layout
from paxtune.search_space.decisions import (
    DecisionPoint,
    decision_points,
    numeric_candidates,
    slots,
)
from paxtune.search_space.labels import parameter_path
from paxtune.study.record import Status

if TYPE_CHECKING:
    from paxtune.search_space.space import Space
    from paxtune.study.study_view import StudyView
    from paxtune.study.trial import Trial

MOST_DECISIONS = 10
"""Decisions that a figure shows unless they are named: the most important ones."""

MOST_HOVERS = 1000
"""Trials whose decisions are shown under the pointer."""

_LINES = 25  # Of the text under the pointer.


@dataclasses.dataclass(frozen=True)
class Values:
    """The final values of trials for one reward or metric.

    Attributes:
        axis: the reward or metric.
        trials: all trials, by id.
        values: [trials], float64; NaN without a final value.
    """

    axis: Axis
    trials: 'Sequence[Trial]'
    values: np.ndarray

    def best_so_far(self) -> np.ndarray:
        """The best value of completed trials up to each trial: [trials], NaN before the first."""
        counts = [trial.status is Status.COMPLETED for trial in self.trials]
        known = np.where(counts, self.values, np.nan)
        best = np.fmax if self.axis.is_maximized else np.fmin
        found: np.ndarray = best.accumulate(known) if len(known) else known
        return found

    def measured(self) -> 'Values':
        """The trials with a value alone."""
        there = np.flatnonzero(np.isfinite(self.values))
        return Values(self.axis, [self.trials[int(index)] for index in there], self.values[there])


def final_values(study: 'StudyView', reward: str | None) -> Values | None:
    """Reads the final values of all trials; None if the study has no reward and none is named.

    Raises:
        UserError: there is no such reward or metric.
    """
    if reward is None and not study.rewards:
        return None
    axis, trials = axis_of(study, reward), study.trials
    return Values(axis, trials, np.array([value_of_trial(axis, each) for each in trials], float))


@dataclasses.dataclass(frozen=True)
class DecisionColumn:
    """The values of trials for one decision, as numbers.

    Attributes:
        path: the decision.
        name: its short name.
        values: [trials], float64: numbers, or indices of labels; NaN where it is inactive.
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

    def at(self, index: int) -> str:
        """The value of a trial for people; '' where it is inactive."""
        value = self.values[index]
        if np.isnan(value):
            return ''
        return self.labels[int(value)] if self.labels else layout.number(value)


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
    most: int = MOST_DECISIONS,
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


def hovers(trials: 'Sequence[Trial]', columns: Sequence[DecisionColumn]) -> list[str]:
    """The text under the pointer for each trial; without decisions where there are many trials."""
    if len(trials) > MOST_HOVERS:
        return [f'trial {trial.id}, {trial.status}' for trial in trials]
    return [
        '<br>'.join(
            [
                f'<b>trial {trial.id}</b>, {trial.status}',
                *itertools.islice(_decided(columns, row), _LINES),
                *([layout.text(trial.reason)] if trial.reason else []),
            ]
        )
        for row, trial in enumerate(trials)
    ]


def _decided(columns: Sequence[DecisionColumn], row: int) -> Iterable[str]:
    for column in columns:
        if value := column.at(row):
            yield f'{layout.text(column.name)}: {layout.text(value)}'


@dataclasses.dataclass(frozen=True)
class Curve:
    """A learning curve: steps ascending, values finite."""

    trial: 'Trial'
    steps: list[int]
    values: list[float]


def learning_curves(axis: Axis, trials: 'Iterable[Trial]') -> list[Curve]:
    """Reads the learning curves of trials that measured a value."""
    found = []
    for trial in trials:
        pairs = [(each.step, value_at(axis, each)) for each in trial.measurements]
        finite = [(step, value) for step, value in pairs if math.isfinite(value)]
        if finite:
            steps, values = zip(*finite, strict=True)
            found.append(Curve(trial, list(steps), list(values)))
    return found
