"""The trials of a study by two numbers, and the front of those that no other one beats in both.

An axis is a reward or a metric. What is good on it is what the goal of the reward says; of a
metric, less is better, or more where its name is given with a + before it.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paxtune.objectives import pareto
from paxtune.objectives.metrics import MissingMetricError, as_metric
from paxtune.objectives.shrinkage import mean
from paxtune.reports.tables import Document, Table
from paxtune.study.frames import reward_columns
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.study.replicates import LeaderboardEntry
    from paxtune.study.study import Study

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
        metric = as_metric(self.name)
        return mean([metric.value(trial.metrics) for trial in entry.trials])


@dataclasses.dataclass(frozen=True)
class Point:
    """A trial that was completed, and not stopped early.

    Attributes:
        trial: its number; where decisions were tried repeatedly, that of the trial for them.
        decisions: {path: plain value or short name}.
        is_best: whether no other one is better on one axis, and as good on the other.
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


def front_of(study: 'Study', x: str | None = None, y: str | None = None) -> Front:
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
    found = study.leaderboard
    # As for the front of a study: one that lacks repeats may only have been lucky.
    found = [each for each in found if each.is_complete] or found
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


def document(front: Front) -> Document:
    """The trials of a front: for people those alone, for programs all, with those behind it."""
    names = [front.x.name, front.y.name]
    rows = [
        {
            'trial': point.trial,
            'front': point.is_best,
            **dict(zip(names, (point.x, point.y), strict=True)),
            **{f'decisions.{path}': value for path, value in point.decisions.items()},
        }
        for point in front.points
    ]
    columns = ['trial', 'front', *names, *(f'decisions.{path}' for path in front.names)]
    best = [row for row in rows if row['front']]
    axes = [
        {'name': axis.name, 'goal': 'maximize' if axis.is_maximized else 'minimize'}
        for axis in (front.x, front.y)
    ]
    remark = 'No trial was completed yet.'
    if rows:
        goals = ', '.join(f'{axis["name"]} ({axis["goal"]})' for axis in axes)
        remark = f'{len(best)} of {len(rows)} completed trials are on the front of {goals}.'
    decided = {f'decisions.{path}': name for path, name in front.names.items()}
    tables = [Table.compact(best, ['trial', *names, 'decisions'], decided)]
    return Document({'x': axes[0], 'y': axes[1], 'trials': rows}, rows, columns, tables, remark)


def _names(study: 'Study', x: str | None, y: str | None) -> tuple[str, str]:
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


def _axis(study: 'Study', name: str) -> Axis:
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
