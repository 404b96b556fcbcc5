"""Measurements of a trial."""

import dataclasses
from collections.abc import Mapping, Sequence

from paxtune.objectives.metrics import split_name


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Metrics of a trial at one step.

    Attributes:
        step: training step.
        metrics: all finite metrics by name, without rewards.
        rewards: one for each objective. Empty if a required metric was not measured yet, or the
            search has no reward.
        checkpoint: path of the checkpoint of this step, if there is one.
        elapsed_seconds: time since the trial began, if its runner measures it.
    """

    step: int
    metrics: Mapping[str, float]
    rewards: tuple[float, ...] = ()
    checkpoint: str | None = None
    elapsed_seconds: float = 0.0

    @property
    def reward(self) -> float | None:
        """The reward if there is exactly one."""
        return self.rewards[0] if len(self.rewards) == 1 else None


def last_reward(measurements: Sequence[Measurement]) -> float | None:
    """The reward of the last measurement that has one."""
    rewards = (each.reward for each in reversed(measurements))
    return next((value for value in rewards if value is not None), None)


def with_carried(
    measurements: Sequence[Measurement], metrics: Mapping[str, float]
) -> dict[str, float]:
    """Adds the latest metrics of the other sub-experiments to the metrics of one."""
    now = {split_name(name)[1] for name in metrics}
    carried = {
        name: value
        for measurement in measurements
        for name, value in measurement.metrics.items()
        if split_name(name)[1] not in now
    }
    return carried | dict(metrics)
