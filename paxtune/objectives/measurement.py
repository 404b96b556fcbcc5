"""What a study keeps of a trial at one step."""

import dataclasses
from collections.abc import Mapping, Sequence

from paxtune.objectives.metrics import split_name


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Metrics of a trial at one step.

    Attributes:
        step: the training step.
        metrics: all finite metrics by name, the rewards not among them.
        rewards: the rewards made of them, one for each objective. Empty where a metric that they
            need was not measured yet, and where the search has no reward.
        checkpoint: the path of the checkpoint of this very step, where there is one.
        elapsed_seconds: the time since the trial began, where its runner measures it.
    """

    step: int
    metrics: Mapping[str, float]
    rewards: tuple[float, ...] = ()
    checkpoint: str | None = None
    elapsed_seconds: float = 0.0

    @property
    def reward(self) -> float | None:
        """The only reward; None where there is none, or more than one."""
        return self.rewards[0] if len(self.rewards) == 1 else None


def with_carried(
    measurements: Sequence[Measurement], metrics: Mapping[str, float]
) -> dict[str, float]:
    """Metrics together with what other sub-experiments have measured last.

    Args:
        measurements: earlier ones of the trial.
        metrics: those of one sub-experiment.
    """
    now = {split_name(name)[1] for name in metrics}
    carried = {
        name: value
        for measurement in measurements
        for name, value in measurement.metrics.items()
        if split_name(name)[1] not in now
    }
    return carried | dict(metrics)
