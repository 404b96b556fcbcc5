"""What a study keeps of a trial at one step."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Metrics of a trial at one step.

    Attributes:
        step: the training step.
        metrics: all finite metrics by name, the reward not among them.
        reward: the reward made of them.
    """

    step: int
    metrics: Mapping[str, float]
    reward: float
