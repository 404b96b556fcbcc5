"""The resources of trials: training steps, tokens, floating-point operations, or seconds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import split_name

if TYPE_CHECKING:
    from paxtune.schedulers.base import Scheduler, Unit
    from trainer.experiment import Experiment

METRICS: 'Mapping[Unit, str]' = {
    'tokens': 'spent_tokens',
    'flops': 'spent_flops',
    'seconds': 'spent_seconds',
}
"""The trainer's metrics of the resources that a run has used since its first step, by unit."""


def consumed(measurements: Sequence[Measurement], unit: 'Unit') -> list[float]:
    """The resource that a trial has used at each measurement, its sub-experiments together.

    It is 0 where the unit was not measured.

    Example:
        >>> consumed([Measurement(10, {}), Measurement(20, {})], 'steps')
        [10.0, 20.0]
        >>> consumed([Measurement(1, {'spent_tokens': 8.0})], 'tokens')
        [8.0]
    """
    if unit == 'steps':
        return [float(each.step) for each in measurements]
    known: dict[str | None, float] = {}  # The last value of each sub-experiment.
    found = []
    for measurement in measurements:
        for name, value in measurement.metrics.items():
            base, part = split_name(name)
            if base == METRICS[unit]:
                known[part] = value
        found.append(sum(known.values()))
    return found


def max_resource(parts: 'Mapping[str, Experiment]', unit: 'Unit') -> float | None:
    """The resource of training all sub-experiments to their ends; None for seconds."""
    if unit == 'seconds':
        return None
    return sum(_max_resource(part, unit) for part in parts.values())


def without_effect(scheduler: 'Scheduler', parts: 'Mapping[str, Experiment]') -> list[str]:
    """Fields of a scheduler for which the training of `parts`, in order, is too short."""
    unit, last = scheduler.unit, list(parts.values())[-1]
    if (end := max_resource(parts, unit)) is None:
        return []
    steps, own = last.train.num_train_steps, _max_resource(last, unit)
    evaluated = (steps - 1) // last.train.evaluation.every * last.train.evaluation.every
    latest = end - own + own * evaluated / steps
    return [
        f'search.scheduler.{field}: training ends before it has an effect, at {onset:g} {unit}. '
        f'The last evaluation before the end is at {latest:g}.'
        for field, onset in scheduler.onsets(end).items()
        if onset > latest
    ]


def _max_resource(part: 'Experiment', unit: 'Unit') -> float:
    steps = float(part.train.num_train_steps)
    if unit == 'steps':
        return steps
    from trainer.program import costs

    tokens = steps * costs.tokens_per_step(part)
    return tokens if unit == 'tokens' else tokens * costs.static_costs(part)['flops_per_token']
