"""What policies have in common that judge a trial at certain steps."""

import bisect
import operator
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

import pyglove as pg

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import Metric, as_metric
from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curve, Policy, reward_score


class Passage(NamedTuple):
    """How a trial passes a gate.

    Attributes:
        gate: the number of the gate.
        step: where the trial is measured first, from the gate on.
        value: its reward there, or its metric.
    """

    gate: int
    step: int
    value: float


class Gated(Policy):
    """Judges a trial when it passes a gate, by its reward or by a metric.

    As in Pax, a trial is judged once at each gate, at its first measurement from there on; of
    several gates between two measurements the last one counts.

    Attributes:
        gates: rows that begin with a step, by step.
        metric: what the trial is judged by; None for its reward.
        goal: whether small or large values of the metric are good; given with a metric.
    """

    ROW: ClassVar[tuple[str, ...]] = ('step',)

    gates: list[list[int | float]]
    metric: str | Metric | None = None
    goal: Literal['minimize', 'maximize'] | None = None

    def check(self) -> None:
        super().check()
        row = f'rows [{", ".join(self.ROW)}]'
        if not self.gates or any(len(gate) != len(self.ROW) for gate in self.gates):
            raise ValueError(f'gates must be {row}, at least one: {self.gates}')
        steps = [gate[0] for gate in self.gates]
        if any(step < 0 or step != int(step) for step in steps):
            raise ValueError(f'the steps of gates must be whole numbers from 0: {steps}')
        if sorted(set(steps)) != steps:
            raise ValueError(f'the steps of gates must increase: {steps}')
        if (self.metric is None) != (self.goal is None):
            raise ValueError('metric and goal must be given together: the reward has its own goal')

    @property
    def needs_reward(self) -> bool:
        return self.metric is None

    def rungs(self, curve: Curve) -> Sequence[float]:
        return [float(gate[0]) for gate in self.gates]

    @property
    def subject(self) -> str:
        """What a trial is judged by, for people."""
        return 'reward' if self.metric is None else as_metric(self.metric).label

    def score(self, reward: Reward | None) -> Callable[[float], float]:
        """What turns values such that more is better.

        Raises:
            ValueError: trials are judged by their reward, and there is none.
        """
        if self.metric is None:
            return reward_score(self, reward)
        return operator.pos if self.goal == 'maximize' else operator.neg

    def passages(self, curves: Sequence[Curve]) -> list[list[Passage]]:
        """The gates that each trial has passed, by step.

        Raises:
            UserError: several metrics match the one that trials are judged by.
        """
        # Read once: a study may have thousands of trials.
        steps, value = [row[0] for row in self.gates], self._reader()
        return [_passages(curve, steps, value) for curve in curves]

    def _reader(self) -> Callable[[Measurement], float | None]:
        """What reads the value of a measurement; None where it has none."""
        if self.metric is None:
            return operator.attrgetter('reward')
        metric, path = as_metric(self.metric), str(pg.KeyPath('metric', self.sym_path))

        def read(measurement: Measurement) -> float | None:
            if not metric.matches(measurement.metrics):
                return None
            return metric.value(measurement.metrics, path)

        return read


def passes_now(passed: Sequence[Passage], curve: Curve) -> bool:
    """Whether the last of these gates is passed with the last measurement."""
    return bool(passed) and passed[-1].step == curve.measurements[-1].step


def _passages(
    curve: Curve, steps: Sequence[float], value: Callable[[Measurement], float | None]
) -> list[Passage]:
    passed: list[Passage] = []
    for measurement, spent in zip(curve.measurements, curve.spent, strict=True):
        gate = bisect.bisect_right(steps, spent) - 1
        if gate > (passed[-1].gate if passed else -1):
            read = value(measurement)
            if read is not None:
                passed.append(Passage(gate, measurement.step, read))
    return passed
