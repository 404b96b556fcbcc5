"""The trials of a study by two metrics, and their Pareto front.

An axis is a reward or a metric. A reward has its own goal. A metric is minimized, or maximized if
its name is given with a + before it.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paxtune.objectives import pareto
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import Metric, MissingMetricError, as_metric
from paxtune.objectives.shrinkage import mean
from paxtune.study import replicates
from paxtune.study.columns import reward_columns
from trainer.symbolic.errors import UserError, nearest

if TYPE_CHECKING:
    from paxtune.study.replicates import LeaderboardEntry
    from paxtune.study.study_view import StudyView
    from paxtune.study.trial import Trial

COST = 'num_params'
"""The second axis of a study with one reward."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """One of the two numbers: `reward` is its index among the rewards, None for a metric."""

    name: str
    is_maximized: bool
    reward: int | None = None

    @property
    def sign(self) -> float:
        """The factor that turns a value into a score, where more is better."""
        return 1.0 if self.is_maximized else -1.0

    def value(self, entry: 'LeaderboardEntry') -> float:
        """Returns the value of a configuration: its expected score, or the mean of its trials.

        Raises:
            MissingMetricError: the metric was not measured.
            UserError: several metrics have the name.
        """
        if self.reward is not None:
            return self.sign * entry.scores[self.reward]
        return mean([self._metric.value(trial.metrics) for trial in entry.trials])

    @functools.cached_property
    def _metric(self) -> Metric:
        return as_metric(self.name)


@dataclasses.dataclass(frozen=True)
class Point:
    """A trial that was completed, and not stopped early.

    Attributes:
        trial: its number; of a configuration with several trials, the one that stands for it.
        decisions: {path: plain value or short name}.
        is_best: it is on the front: no other trial is better on one axis and as good on the other.
    """

    trial: int
    x: float
    y: float
    decisions: dict[str, Any]
    is_best: bool


@dataclasses.dataclass(frozen=True)
class Front:
    """Trials by two numbers.

    Attributes:
        points: all trials that have both numbers, by x.
        names: short names of decisions, by path.
    """

    x: Axis
    y: Axis
    points: list[Point]
    names: dict[str, str]

    @property
    def best(self) -> list[Point]:
        """The trials of the front, by x."""
        return [point for point in self.points if point.is_best]

    @property
    def others(self) -> list[Point]:
        """The trials behind the front, by x."""
        return [point for point in self.points if not point.is_best]


def front_of(study: 'StudyView', x: str | None = None, y: str | None = None) -> Front:
    """The trials of a study by two numbers.

    Args:
        x: a reward by its label, or a metric; the first of two rewards by default, and the number
            of parameters where there is one reward.
        y: the same; the other reward by default.

    Raises:
        UserError: the name of an axis is ambiguous or unknown.
    """
    x, y = _names(study, x, y)
    axes = _axis(study, x), _axis(study, y)
    found = replicates.complete(study.leaderboard)
    measured = [(entry.trial, *_values(axes, entry)) for entry in found]
    points = [(trial, x, y) for trial, x, y in measured if math.isfinite(x) and math.isfinite(y)]
    if found and not points:
        _refuse(axes, found[0])
    best = set(pareto.front([[axes[0].sign * x, axes[1].sign * y] for _, x, y in points]))
    made = [
        Point(trial.id, x, y, trial.decisions, index in best)
        for index, (trial, x, y) in enumerate(points)
    ]
    made.sort(key=lambda point: (point.x, point.y, point.trial))
    return Front(*axes, made, study.space.short_names)


def axis_of(study: 'StudyView', name: str | None = None) -> Axis:
    """Finds a reward by its label, or a metric by its name; the first reward by default.

    Raises:
        UserError: the study has no reward, or its trials have no reward or metric of this name.
    """
    rewards = reward_columns(study.rewards)
    if name is None and not rewards:
        raise UserError('the study has no reward: name a metric')
    axis = _axis(study, rewards[0] if name is None else name)
    if axis.reward is None:
        metrics = {metric for trial in study.trials for metric in trial.metrics}
        if metrics and axis.name not in metrics:
            known = sorted(metrics) + rewards
            hint = nearest(axis.name, known) or f'There are {", ".join(known)}.'
            raise UserError(f'{axis.name}: there is no such reward or metric. {hint}')
    return axis


def value_of_trial(axis: Axis, trial: 'Trial') -> float:
    """Returns the final value of a trial; NaN before its end, or if it was not measured."""
    if axis.reward is not None:
        return trial.rewards[axis.reward] if trial.rewards else math.nan
    return math.nan if trial.final is None else trial.final.metrics.get(axis.name, math.nan)


def value_at(axis: Axis, measurement: Measurement) -> float:
    """Returns the value of a measurement; NaN if it was not measured then."""
    if axis.reward is not None:
        return measurement.rewards[axis.reward] if measurement.rewards else math.nan
    return measurement.metrics.get(axis.name, math.nan)


def _names(study: 'StudyView', x: str | None, y: str | None) -> tuple[str, str]:
    rewards = reward_columns(study.rewards)
    given = [_plain(rewards, name) for name in (x, y) if name is not None]
    left = [name for name in rewards if name not in given]
    if len(rewards) == 1:
        x, y = x or COST, y or rewards[0]
    elif len(rewards) == 2 and len(left) + len(given) == 2:
        x = x or left.pop(0)
        y = y or left.pop(0)
    if x is None or y is None:
        raise UserError(
            f'the study has {len(rewards)} rewards ({", ".join(rewards) or "none"}): name both '
            'axes with --x=… and --y=…, each a reward or a metric'
        )
    if _plain(rewards, x) == _plain(rewards, y):
        raise UserError(f'--x={x}: the other axis is the same: name another one')
    return x, y


def _plain(rewards: Sequence[str], name: str) -> str:
    """The name of a reward or metric, however it was given."""
    if name == 'reward' and len(rewards) == 1:
        return rewards[0]
    return name if name in rewards else name.removeprefix('+')


def _axis(study: 'StudyView', name: str) -> Axis:
    rewards = reward_columns(study.rewards)
    plain = _plain(rewards, name)
    if plain in rewards:
        index = rewards.index(plain)
        return Axis(plain, study.rewards[index].goal == 'maximize', index)
    return Axis(plain, name.startswith('+'))


def _values(axes: tuple[Axis, Axis], entry: 'LeaderboardEntry') -> tuple[float, float]:
    try:
        return axes[0].value(entry), axes[1].value(entry)
    except MissingMetricError:
        return math.nan, math.nan


def _refuse(axes: Sequence[Axis], entry: 'LeaderboardEntry') -> None:
    """Raises UserError with the reason why no trial has both axes."""
    for flag, axis in zip(('--x', '--y'), axes, strict=True):
        try:
            axis.value(entry)
        except MissingMetricError as error:
            raise UserError(f'{flag}={axis.name}: {error}') from error
    raise UserError(f'no trial has both {axes[0].name} and {axes[1].name}')
