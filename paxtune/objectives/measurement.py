"""Measurements of a trial."""

import contextlib
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from paxtune.objectives.metrics import split_name
from trainer.symbolic.errors import UserError


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


def in_words(value: object) -> str:
    """Renders a value without its address in memory, for people."""
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception:  # The user's own class.
        text = ''
    article = 'an' if kind[0] in 'aeiouAEIOU' else 'a'
    return f'{article} {kind}' if not text or ' at 0x' in text or len(text) > 80 else text


def as_number(name: str, value: Any) -> float:
    """Converts a metric to a number; raises UserError for another value, also a truth value."""
    is_logical = isinstance(value, bool) or 'bool' in str(getattr(value, 'dtype', ''))
    if not is_logical and not isinstance(value, str | bytes | bytearray):
        with contextlib.suppress(OverflowError, TypeError, ValueError):
            return float(value)
    if isinstance(value, Mapping):
        how = f'give each of its numbers a name of its own, such as {name}/{next(iter(value), "a")}'
    else:
        how = f'trial.set_attribute({name!r}, …) keeps other values for people'
    raise UserError(f'the metric {name} is {in_words(value)}, and must be a number: {how}')


def as_step(value: Any) -> int:
    """Converts a step to an integer; raises UserError for another value, or one below 0."""
    with contextlib.suppress(TypeError):
        if not isinstance(value, bool) and (step := operator.index(value)) >= 0:
            return step
    raise UserError(f'the step is {in_words(value)}, and must be an integer of at least 0')
