"""What a study keeps of a trial at one step."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Metrics of a trial at one step.

    Attributes:
        step: the training step.
        metrics: all finite metrics by name, the rewards not among them.
        rewards: the rewards made of them, one for each objective. Empty where a metric that they
            need was not measured yet, and where the search has no reward.
        checkpoint: the path of the checkpoint of this very step, where there is one.
    """

    step: int
    metrics: Mapping[str, float]
    rewards: tuple[float, ...] = ()
    checkpoint: str | None = None

    @property
    def reward(self) -> float | None:
        """The only reward; None where there is none, or more than one."""
        return self.rewards[0] if len(self.rewards) == 1 else None
