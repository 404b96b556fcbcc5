"""The base of schedulers that decide at given milestones."""

import bisect
import operator
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

import pyglove as pg

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import Metric, as_metric
from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curves, Scheduler, Score, Stop, TrialCurve


class MilestoneValue(NamedTuple):
    """The value of a trial at a milestone.

    Attributes:
        milestone: the number of the milestone.
        step: the first measurement from the milestone on.
        value: the reward there, or the metric.
    """

    milestone: int
    step: int
    value: float


class MilestoneScheduler(Scheduler):
    """Decides when a trial reaches a milestone, by its reward or by a metric.

    As in Pax, it decides once at each milestone, at the first measurement from there on; of several
    milestones between two measurements the last one counts.

    Attributes:
        milestones: rows that begin with a step, by step. In another `unit`, it is a resource.
        metric: the metric that is compared; None for the reward.
        goal: 'minimize' if small values of the metric are good; given together with a metric.
    """

    ROW: ClassVar[tuple[str, ...]] = ('step',)

    milestones: list[list[int | float]]
    metric: str | Metric | None = None
    goal: Literal['minimize', 'maximize'] | None = None

    def check(self) -> None:
        super().check()
        row = f'rows [{", ".join(self.ROW)}]'
        if not self.milestones or any(len(each) != len(self.ROW) for each in self.milestones):
            raise ValueError(f'milestones must be {row}, at least one: {self.milestones}')
        steps = [each[0] for each in self.milestones]
        if any(step < 0 or step != int(step) for step in steps):
            raise ValueError(f'the steps of milestones must be whole numbers from 0: {steps}')
        if sorted(set(steps)) != steps:
            raise ValueError(f'the steps of milestones must increase: {steps}')
        if (self.metric is None) != (self.goal is None):
            raise ValueError('metric and goal must be given together: the reward has its own goal')

    def onsets(self, max_resource: float) -> dict[str, float]:
        starts = {f'milestones[{i}]': float(each[0]) for i, each in enumerate(self.milestones)}
        return {**super().onsets(max_resource), **starts}

    @property
    def needs_reward(self) -> bool:
        return self.metric is None

    def rung_levels(self, curve: TrialCurve) -> Sequence[float]:
        return [float(each[0]) for each in self.milestones]

    @property
    def label(self) -> str:
        """The name of the value that is compared, in messages."""
        return 'reward' if self.metric is None else as_metric(self.metric).label

    def _decide(self, curve: TrialCurve, others: Curves, reward: Reward | None) -> Stop | None:
        score = self._score(reward)
        (own,) = self._values([curve])
        if not own or own[-1].step != curve.measurements[-1].step:
            return None
        return self._decide_at(own[-1], others, score)

    def _decide_at(self, value: MilestoneValue, others: Curves, score: Score) -> Stop | None:
        raise NotImplementedError(type(self).__name__)

    def _score(self, reward: Reward | None) -> Score:
        if self.metric is None:
            return super()._score(reward)
        return operator.pos if self.goal == 'maximize' else operator.neg

    def _values(self, curves: Curves) -> list[list[MilestoneValue]]:
        # Read once: a study may have thousands of trials.
        steps, read = [row[0] for row in self.milestones], self._reader()
        return [_values_of(curve, steps, read) for curve in curves]

    def _reader(self) -> Callable[[Measurement], float | None]:
        if self.metric is None:
            return operator.attrgetter('reward')
        metric, path = as_metric(self.metric), str(pg.KeyPath('metric', self.sym_path))

        def read(measurement: Measurement) -> float | None:
            if not metric.matches(measurement.metrics):
                return None
            return metric.value(measurement.metrics, path)

        return read


def _values_of(
    curve: TrialCurve, steps: Sequence[float], read: Callable[[Measurement], float | None]
) -> list[MilestoneValue]:
    found: list[MilestoneValue] = []
    for measurement, resource in zip(curve.measurements, curve.resources, strict=True):
        milestone = bisect.bisect_right(steps, resource) - 1
        if milestone > (found[-1].milestone if found else -1):
            value = read(measurement)
            if value is not None:
                found.append(MilestoneValue(milestone, measurement.step, value))
    return found
