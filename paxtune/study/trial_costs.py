"""Costs of a trial before its first step, and the limits on them.

Each kind of cost takes longer than the one before it: tracing a model, compiling its training step,
running it. A trial that is beyond a limit skips the next kinds.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from paxtune.objectives.limits import Limit, violation
from paxtune.objectives.metrics import join_name
from paxtune.study.record import Costs
from trainer.program import costs
from trainer.runtime import processes

if TYPE_CHECKING:
    from paxtune.config.search import Search
    from paxtune.experiment import Tunable

COMPILED, TIMED = 'device_memory_bytes', 'step_seconds'
"""The costs that take a compilation; for the second one the step is run, too."""

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class CostEstimate:
    """Estimated costs of a trial before it trains.

    Attributes:
        metrics: costs, by their names in the trial.
        refusal: the reason why the trial is infeasible by them; None if it is not.
        measured: the timed costs, which differ between measurements.
    """

    metrics: Mapping[str, float]
    refusal: str | None
    measured: Costs = dataclasses.field(default_factory=dict)


def estimate_costs(
    parts: 'Mapping[str, Tunable]',
    limits: list[Limit],
    wanted: Iterable[str] = (),
    measured: Costs | None = None,
) -> CostEstimate:
    """Estimates the costs of a trial. All processes that train it must do so together.

    Args:
        parts: its experiments, by the name of the sub-experiment ('' without any).
        limits: bounds of the costs. A known memory of the device is another bound.
        wanted: costs to estimate in any case: `COMPILED`, `TIMED`.
        measured: timed costs of an earlier attempt at the trial, which are not timed again.

    Raises:
        UserError: the experiments are invalid, or do not fit the devices.
    """
    wanted, measured = {*wanted}, measured or {}
    metrics = static_costs(parts)
    capacity = costs.device_memory_limit()
    refusal = violation(limits, metrics)
    if refusal is None and (COMPILED in wanted or capacity is not None):
        for name, part in parts.items():
            memory = costs.memory_cost(part)
            metrics |= suffixed(memory, name)
            refusal = refusal or _beyond_device(memory[COMPILED], capacity)
        refusal = refusal or violation(limits, metrics)
    if TIMED in wanted:
        refusal = processes.broadcast(refusal)  # They take steps together, or none at all.
    if refusal is None and TIMED in wanted:
        measured = measured or {name: costs.step_cost(part) for name, part in parts.items()}
        for name, found in measured.items():
            metrics |= suffixed(found, name)
        refusal = violation(limits, metrics)
    return CostEstimate(metrics, refusal, measured)


def wanted_by(search: 'Search', parts: Iterable[str]) -> set[str]:
    """Finds the costs that a search needs of a compiled or timed trial.

    Each measurement of a run has the memory: only a limit needs it before.
    """
    limits = [limit.selector for limit in search.limits]
    asked = {COMPILED: limits, TIMED: [each for path in search.metrics.values() for each in path]}
    parts = list(parts)
    names = {cost: [join_name(cost, part or None) for part in parts] for cost in asked}
    return {
        cost
        for cost, metrics in asked.items()
        if any(each.matches(names[cost]) for each in metrics)
    }


def static_costs(parts: 'Mapping[str, Tunable]') -> dict[str, float]:
    """Computes the costs that need no compilation; raises UserError if a model cannot be built."""
    found: dict[str, float] = {}
    for name, part in parts.items():
        found |= suffixed(costs.static_costs(part), name)
    return found


def suffixed(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    """Renames the metrics of a sub-experiment as the trial does."""
    return {join_name(metric, name or None): value for metric, value in metrics.items()}


def _beyond_device(needed: float, capacity: int | None) -> str | None:
    if capacity is None or needed <= capacity:
        return None
    return (
        f'it needs {needed / _GIB:.2f} GiB of device memory, '
        f'and the device has {capacity / _GIB:.2f} GiB'
    )
