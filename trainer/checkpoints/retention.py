import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orbax.checkpoint.experimental.v1 as ocp
from absl import logging

from trainer.experiment import Checkpoints
from trainer.symbolic.durations import seconds
from trainer.symbolic.errors import nearest

_policies = ocp.training.preservation_policies


class RetentionPolicy:
    """Keeps the newest checkpoints, and all that other jobs or the run itself need.

    Attributes:
        policy: the same as a policy for Orbax.
        needed: the first step that a job beside the run still needs; so are all later ones.
            None if no job needs any. The same in all processes.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._best = checkpoints.keep_best
        self._values: dict[int, float] = {}
        self.needed: int | None = None
        unprocessed = _Selection(
            lambda steps: [
                step for step in steps if self.needed is not None and step >= self.needed
            ]
        )
        policies: list[Any] = [_policies.LatestN(checkpoints.keep), unprocessed]
        if checkpoints.keep_period is not None:
            policies.append(_policies.EveryNSeconds(seconds(checkpoints.keep_period)))
        if self._best is not None:
            policies.append(_Selection(lambda steps: [self.best_of(steps)]))
        self.policy: Any = _policies.AnyPreservationPolicy(policies)

    def note(self, step: int, metrics: Mapping[str, float]) -> None:
        """Notes the value that decides on the best; it is known after the save of its step.

        A step without a value is never the best: the metric is undefined, or not due.
        """
        if self._best is None:
            return
        name = self._best.metric
        if name not in metrics and not self._values:
            logging.warning(
                'train.checkpoints.keep_best.metric: step %d has no %r, so its checkpoint is not '
                'among the best. %s',
                step,
                name,
                nearest(name, metrics),
            )
        if not math.isnan(value := metrics.get(name, math.nan)):
            self._values[step] = value

    def best_of(self, steps: Sequence[int]) -> int | None:
        """The best step, the first of equal ones; None if none was measured."""
        known = [step for step in steps if step in self._values]
        sign = 1 if self._best is None or self._best.goal == 'minimize' else -1
        return min(known, key=lambda step: sign * self._values[step], default=None)

    def to_json(self) -> dict[str, float]:
        """The noted value of the best step, for `from_json` in a resumed run."""
        best = self.best_of(sorted(self._values))
        return {} if best is None else {str(best): self._values[best]}

    def from_json(self, saved: Mapping[str, float]) -> None:
        """Restores the result of `to_json`."""
        self._values |= {int(step): float(value) for step, value in saved.items()}


class _Selection:
    """A policy of Orbax that keeps the steps which a function selects."""

    def __init__(self, selected: Callable[[Sequence[int]], Sequence[int | None]]) -> None:
        self._selected = selected

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        steps = [each.step for each in checkpoints]
        kept = self._selected(steps)
        return [step in kept for step in steps]
