"""Costs of a trial before its first step, and the limits on them.

Each kind of cost takes longer to know than the one before it: tracing a model, compiling its
training step, running it. What is too costly by one is not asked for the next.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from paxtune.objectives.limits import Limit, violation
from paxtune.objectives.metrics import Metric, join_name
from trainer.program import costs
from trainer.runtime import processes

if TYPE_CHECKING:
    from paxtune.config.search import Search
    from paxtune.experiment import Tunable

COMPILED, TIMED = 'device_memory_bytes', 'step_seconds'
"""The costs that take a compilation; for the second one the step is run, too."""

_GIB = 2**30

Measured = Mapping[str, Mapping[str, float]]
"""Metrics by the name of the sub-experiment ('' without any)."""


@dataclasses.dataclass(frozen=True)
class CostEstimate:
    """Estimated costs of a trial before it trains.

    Attributes:
        metrics: its costs, by their names in the trial.
        refusal: why it is infeasible by them; None if it is not.
        measured: those of the costs that no two measurements agree on.
    """

    metrics: Mapping[str, float]
    refusal: str | None
    measured: Measured = dataclasses.field(default_factory=dict)


def estimate_costs(
    parts: 'Mapping[str, Tunable]',
    limits: list[Limit],
    wanted: Iterable[str] = (),
    measured: Measured | None = None,
) -> CostEstimate:
    """Finds out what a trial costs. All processes that train it must do so together.

    Args:
        parts: its experiments, by the name of the sub-experiment ('' without any).
        limits: what it must keep to. The memory of the device is one of them where it is known.
        wanted: which of `COMPILED` and `TIMED` are to be known besides.
        measured: what an earlier attempt at the trial has measured, which counts.

    Raises:
        UserError: it does not fit together, or not the devices.
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
    """Finds the costs that need a compiled or timed trial, from the search.

    Each measurement of a run says what memory it needs: only a limit wants to know it before.
    """
    limits = [limit.selector for limit in search.limits]
    asked = {COMPILED: limits, TIMED: [each for path in search.metrics.values() for each in path]}
    parts = list(parts)
    return {cost for cost, metrics in asked.items() if _ask_for(cost, metrics, parts)}


def _ask_for(cost: str, metrics: Iterable[Metric], parts: list[str]) -> bool:
    names = [join_name(cost, part or None) for part in parts]
    return any(metric.matches(names) for metric in metrics)


def static_costs(parts: 'Mapping[str, Tunable]') -> dict[str, float]:
    """The costs of sub-experiments that are known without compiling, as metrics of the trial.

    Raises:
        UserError: a model cannot be built.
    """
    found: dict[str, float] = {}
    for name, part in parts.items():
        found |= suffixed(costs.static_costs(part), name)
    return found


def suffixed(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    """Metrics of a sub-experiment under the names that they have in the trial."""
    return {join_name(metric, name or None): value for metric, value in metrics.items()}


def _beyond_device(needed: float, capacity: int | None) -> str | None:
    if capacity is None or needed <= capacity:
        return None
    return (
        f'it needs {needed / _GIB:.2f} GiB of device memory, '
        f'and the device has {capacity / _GIB:.2f} GiB'
    )
