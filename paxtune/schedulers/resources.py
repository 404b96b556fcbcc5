"""What trials spend: training steps, tokens, floating-point operations, or seconds of training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import split_name

if TYPE_CHECKING:
    from paxtune.experiment import Tunable
    from paxtune.schedulers.base import Unit

METRICS: 'Mapping[Unit, str]' = {
    'tokens': 'spent_tokens',
    'flops': 'spent_flops',
    'seconds': 'spent_seconds',
}
"""What the trainer calls what a run has spent since its first step, by unit. Steps are steps."""


def spent(measurements: Sequence[Measurement], unit: 'Unit') -> list[float]:
    """What a trial had spent at each of its measurements, its sub-experiments together.

    Where the unit was not measured, nothing was spent.

    Example:
        >>> spent([Measurement(10, {}), Measurement(20, {})], 'steps')
        [10.0, 20.0]
        >>> spent([Measurement(1, {'spent_tokens': 8.0})], 'tokens')
        [8.0]
    """
    if unit == 'steps':
        return [float(each.step) for each in measurements]
    known: dict[str | None, float] = {}  # Of each sub-experiment, the last that was measured.
    found = []
    for measurement in measurements:
        for name, value in measurement.metrics.items():
            base, part = split_name(name)
            if base == METRICS[unit]:
                known[part] = value
        found.append(sum(known.values()))
    return found


def budget(parts: Mapping[str, 'Tunable'], unit: 'Unit') -> float | None:
    """What sub-experiments spend together if they are trained to their ends.

    None for seconds, which nobody knows beforehand.

    Raises:
        UserError: a model cannot be built.
    """
    if unit == 'seconds':
        return None
    return sum(_budget(part, unit) for part in parts.values())


def _budget(part: 'Tunable', unit: 'Unit') -> float:
    steps = float(part.train.num_train_steps)
    if unit == 'steps':
        return steps
    from trainer.program import costs

    tokens = steps * costs.tokens_per_step(part)
    return tokens if unit == 'tokens' else tokens * costs.static_costs(part)['flops_per_token']
