"""Which checkpoints of a run are kept as new ones are written."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orbax.checkpoint.experimental.v1 as ocp

from trainer.experiment import TrainLoop
from trainer.symbolic.durations import seconds

_policies = ocp.training.preservation_policies


class Preservation:
    """The newest, where asked for one every so often and the best so far, and what others need.

    Attributes:
        policy: what orbax asks.
        needed: the first step that a job which follows the run still needs, with all after it;
            None where none does. The same in all processes.
    """

    def __init__(self, loop: TrainLoop) -> None:
        """Keeps what the loop says."""
        self._goal = loop.save_best_goal
        self._values: dict[int, float] = {}
        self.needed: int | None = None
        policies: list[Any] = [_policies.LatestN(loop.save_max_to_keep), _Needed(self)]
        if loop.save_keep_interval_duration is not None:
            policies.append(_policies.EveryNSeconds(seconds(loop.save_keep_interval_duration)))
        if loop.save_best_metric is not None:
            policies.append(_Best(self))
        self.policy: Any = _policies.AnyPreservationPolicy(policies)

    def note(self, step: int, value: float) -> None:
        """Takes note of what the best is judged by, which is known after the save of its step."""
        if not math.isnan(value):
            self._values[step] = value

    def best_of(self, steps: Sequence[int]) -> int | None:
        """The step that was best; the first of equal ones. None where none was measured."""
        known = [step for step in steps if step in self._values]
        sign = 1 if self._goal == 'minimize' else -1
        return min(known, key=lambda step: sign * self._values[step], default=None)

    def to_json(self) -> dict[str, float]:
        """What was noted, for `from_json` in a run that resumes."""
        best = self.best_of(sorted(self._values))
        return {} if best is None else {str(best): self._values[best]}

    def from_json(self, saved: Mapping[str, float]) -> None:
        """Takes note of what `to_json` has returned."""
        self._values |= {int(step): float(value) for step, value in saved.items()}


class _Needed:
    def __init__(self, kept: Preservation) -> None:
        self._kept = kept

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Whether each is to be kept."""
        needed = self._kept.needed
        return [needed is not None and each.step >= needed for each in checkpoints]


class _Best:
    def __init__(self, kept: Preservation) -> None:
        self._kept = kept

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Whether each is to be kept."""
        best = self._kept.best_of([each.step for each in checkpoints])
        return [each.step == best for each in checkpoints]
