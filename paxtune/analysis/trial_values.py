"""Values of trials for a reward or a metric: final ones, the running best, learning curves."""

import bisect
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from paxtune.analysis.trade_off import Axis, axis_of, value_at, value_of_trial
from paxtune.schedulers.rung_report import rank_correlation
from paxtune.study.record import Status

if TYPE_CHECKING:
    from paxtune.objectives.measurement import Measurement
    from paxtune.study.study_view import StudyView
    from paxtune.study.trial import Trial

_Item = TypeVar('_Item')

STEP, SECONDS = 'step', 'seconds'
"""Horizontal axes of learning curves that every trial has."""

_MIN_TRIALS = 4
"""Trials whose values have quarters."""

_MAX_STEPS = 100
"""Steps at which correlations are computed."""

_MAX_TRIALS = 2000
"""Trials from which correlations are computed."""


class NoValuesError(Exception):
    """A study has no values of a kind yet. The message says why, for people."""


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
        return self.of(np.flatnonzero(np.isfinite(self.values)))

    def completed(self) -> 'Values':
        """The completed trials with a value alone."""
        counts = np.array([each.status is Status.COMPLETED for each in self.trials], bool)
        return self.of(np.flatnonzero(np.isfinite(self.values) & counts))

    def in_order_of_time(self) -> 'Values':
        """The trials that have ended, by the time of their end."""
        ends = [(trial.completed, row) for row, trial in enumerate(self.trials) if trial.completed]
        return self.of(np.array([row for _, row in sorted(ends)], int))

    def hours(self) -> np.ndarray:
        """Hours from the creation of the first trial to the end of each: [trials]."""
        began = [trial.created.timestamp() for trial in self.trials]
        ends = [(trial.completed or trial.created).timestamp() for trial in self.trials]
        return (np.array(ends, float) - min(began, default=0.0)) / 3600

    def of(self, rows: np.ndarray) -> 'Values':
        """Some of the trials, by their indices."""
        return Values(self.axis, [self.trials[int(row)] for row in rows], self.values[rows])

    def best_and_others(self, most: int) -> np.ndarray:
        """Indices of at most `most` values: the best half of them, and evenly spaced others."""
        if (count := len(self.values)) <= most:
            return np.arange(count)
        order = np.argsort(-self.axis.sign * self.values, kind='stable')
        half = most // 2
        others = order[half:]
        return np.sort(np.append(order[:half], others[thinned(len(others), most - half)]))


def axis_for(study: 'StudyView', reward: str | None) -> Axis:
    """Finds a reward by its label, or a metric; the first reward by default.

    Raises:
        NoValuesError: the study has no reward, and none is named.
        UserError: there is no such reward or metric.
    """
    if reward is None and not study.rewards:
        raise NoValuesError('The study has no reward: name a metric.')
    return axis_of(study, reward)


def final_values(study: 'StudyView', reward: str | None) -> Values:
    """Reads the final values of all trials; raises as `axis_for`."""
    axis, trials = axis_for(study, reward), study.trials
    return Values(axis, trials, np.array([value_of_trial(axis, each) for each in trials], float))


def measured_values(study: 'StudyView', reward: str | None) -> Values:
    """Reads the final values of the trials that have one; NoValuesError without any."""
    found = final_values(study, reward).measured()
    if not len(found.values):
        raise NoValuesError('No trial was completed yet.')
    return found


def thinned(count: int, most: int) -> np.ndarray:
    """Evenly spaced indices, the first and the last one included: all of them if they are few.

    Example:
        >>> thinned(4, 9), thinned(9, 3)
        (array([0, 1, 2, 3]), array([0, 4, 8]))
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


@dataclasses.dataclass(frozen=True)
class Curve:
    """A learning curve: steps ascending, values finite.

    Attributes:
        places: where each value stands: at its step, its time or its cost.
    """

    trial: 'Trial'
    steps: list[int]
    values: list[float]
    places: list[float]


def learning_curves(axis: Axis, trials: 'Iterable[Trial]', over: str = STEP) -> list[Curve]:
    """Reads the learning curves of trials that measured a value.

    Args:
        axis: the reward or metric.
        trials: the trials.
        over: `step`, `seconds` since the trial began, or a metric, such as `spent_flops`. A
            measurement without that metric is left out.
    """
    found = []
    for trial in trials:
        points = [(m.step, value_at(axis, m), _place(m, over)) for m in trial.measurements]
        finite = [each for each in points if math.isfinite(each[1]) and math.isfinite(each[2])]
        if finite:
            steps, values, places = zip(*finite, strict=True)
            found.append(Curve(trial, list(steps), list(values), list(places)))
    return found


def _place(measurement: 'Measurement', over: str) -> float:
    if over == STEP:
        return measurement.step
    if over == SECONDS:
        return measurement.elapsed_seconds
    return measurement.metrics.get(over, math.nan)


def diverged(axis: Axis, trials: 'Sequence[Trial]') -> set[int]:
    """Finds the trials that say nothing about good values.

    These are infeasible, measured a metric that was not finite, or are worse than the median by
    more than ten times the distance from there to the best quarter.
    """
    found = {
        each.id for each in trials if each.status is Status.INFEASIBLE or each.record.non_finite
    }
    last = last_values(axis, trials)
    losses = {number: -axis.sign * value for number, value in last.items() if number not in found}
    if len(losses) >= _MIN_TRIALS:
        best, median = np.quantile([*losses.values()], [0.25, 0.5])
        limit = median + 10.0 * (median - best) if median > best else math.inf
        found |= {number for number, loss in losses.items() if loss > limit}
    return found


def last_values(axis: Axis, trials: 'Iterable[Trial]') -> Mapping[int, float]:
    """Maps trials to their final values, or to the last ones that they measured."""
    found = {}
    for trial in trials:
        value = value_of_trial(axis, trial)
        if value != value:  # NaN
            measured = [value_at(axis, each) for each in trial.measurements]
            value = next((each for each in reversed(measured) if each == each), value)
        if value == value:
            found[trial.id] = value
    return found


def values_at_pauses(
    axis: Axis, trials: 'Iterable[Trial]'
) -> Mapping[int, list[tuple[int, float]]]:
    """Maps trials to the steps at which they were paused, each with the last value up to there."""
    found = {}
    for curve in learning_curves(axis, trials):
        counts = [
            (step, bisect.bisect_right(curve.steps, step)) for step in curve.trial.record.pauses
        ]
        found[curve.trial.id] = [(step, curve.values[count - 1]) for step, count in counts if count]
    return found


@dataclasses.dataclass(frozen=True)
class StepCorrelation:
    """The rank correlation of values at a step with final ones, over the trials in `pairs`."""

    step: int
    correlation: float
    pairs: int


def step_correlations(axis: Axis, trials: 'Sequence[Trial]') -> list[StepCorrelation]:
    """Computes how the values at each step rank completed trials, compared with the final values.

    A trial counts at a step with its last value up to there, and not at or after its last step. Of
    many steps or trials, 100 steps and 2000 trials are used, evenly spaced.
    """
    completed = [trial for trial in trials if trial.status is Status.COMPLETED]
    curves = learning_curves(axis, _spaced(completed, _MAX_TRIALS))
    pairs = [(curve, value_of_trial(axis, curve.trial)) for curve in curves]
    pairs = [(curve, value) for curve, value in pairs if value == value]
    steps = sorted({step for curve, _ in pairs for step in curve.steps[:-1]})
    found = []
    for step in _spaced(steps, _MAX_STEPS):
        known = [(_value_up_to(curve, step), end) for curve, end in pairs]
        there = [(value, end) for value, end in known if value is not None]
        if (correlation := rank_correlation(there)) is not None:
            found.append(StepCorrelation(step, correlation, len(there)))
    return found


def _value_up_to(curve: Curve, step: int) -> float | None:
    count = bisect.bisect_right(curve.steps, step)
    return curve.values[count - 1] if 0 < count < len(curve.steps) else None


def _spaced(items: Sequence[_Item], most: int) -> Sequence[_Item]:
    stride = -(-len(items) // most) if items else 1
    return items[::stride]


def best_of(axis: Axis, trials: 'Iterable[Trial]') -> int | None:
    """Returns the completed trial with the best value, the first of equals; None without one."""
    completed = [
        (axis.sign * value, -each.id)
        for each in trials
        if each.status is Status.COMPLETED and (value := value_of_trial(axis, each)) == value
    ]
    return -max(completed)[1] if completed else None
