import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paxtune.reports.tables import Table, print_line, print_table
from paxtune.study.reasons import commonest
from trainer.symbolic.extras import MissingExtraError

if TYPE_CHECKING:
    from rich.console import Console

    from paxtune.objectives.limits import Limit
    from paxtune.search_space.decisions import Decisions
    from paxtune.search_space.space import Space

_TITLES = {
    'num_params': 'parameters',
    'flops_per_token': 'FLOPs per {unit}',
    'state_bytes': 'bytes of the train state',
    'device_memory_bytes': 'bytes of device memory',
    'step_seconds': 'seconds per step',
}
_MAX_REASONS = 5
_BINS = 16
_BLOCKS = ' ▁▂▃▄▅▆▇█'
_WIDE = 10.0  # From the least to the most; beyond it a linear scale shows the largest alone.


@dataclasses.dataclass(frozen=True)
class Kept:
    """The number of samples within a limit, of the `known` ones that have a value."""

    limit: str
    kept: int
    known: int


@dataclasses.dataclass(frozen=True)
class Costs:
    """Costs of random samples of a space.

    Attributes:
        values: of the feasible samples, by the name of the cost.
        reasons: of the infeasible samples.
        limits: the number of samples within each limit on a cost; the last row is for all limits.
        unit: the unit of the tasks: tokens or examples.
    """

    values: dict[str, list[float]]
    num_samples: int
    reasons: list[str]
    limits: list[Kept] = dataclasses.field(default_factory=list)
    unit: str = 'token'


def costs(space: 'Space', decided: Sequence['Decisions'], is_measured: bool = False) -> Costs:
    """Computes costs by decisions; `is_measured` also compiles, and runs some steps."""
    from paxtune.objectives.metrics import split_name

    limits = _limits(space, is_measured)
    values: dict[str, list[float]] = {}
    reasons: list[str] = []
    known: list[Mapping[str, float]] = []
    units: set[str] = set()
    for decisions in decided:
        try:
            experiment = space.materialize(decisions)
            metrics, refusal, counted = _costs_of(experiment, limits, is_measured)
        except MissingExtraError:
            raise  # It is not the fault of the decisions.
        # Any error while tracing an impossible model is a reason, as in a trial.
        except Exception as error:
            reasons.append(str(error).strip().split('\n')[0] or type(error).__name__)
            continue
        known.append(metrics)
        units |= counted
        if refusal is not None:
            reasons.append(refusal)
            continue
        for name, value in metrics.items():
            values.setdefault(split_name(name)[0], []).append(value)
    unit = ' or '.join(sorted(units)) or 'token'
    return Costs(values, len(decided), reasons, _kept(limits, known), unit)


def _limits(space: 'Space', is_measured: bool) -> list['Limit']:
    """Returns the limits of the search that samples can be checked against."""
    from paxtune.experiment import Tunable

    limits = list(space.value.search.limits) if isinstance(space.value, Tunable) else []
    return [limit for limit in limits if is_measured or limit.is_static]


def _costs_of(
    experiment: Any, limits: list['Limit'], is_measured: bool
) -> tuple[Mapping[str, float], str | None, set[str]]:
    """Computes the costs of one trial, the reason why it is infeasible, and the units of its tasks.

    Raises:
        ValueError: it is infeasible by a constraint.
    """
    from paxtune.experiment import Tunable
    from paxtune.objectives.limits import violation
    from paxtune.study.trial_costs import COMPILED, TIMED, estimate_costs, static_costs

    parts = {'': experiment}
    if isinstance(experiment, Tunable):
        for constraint in experiment.search.constraints:
            constraint.require(experiment)
        parts = experiment.parts()
    units = {part.task.unit for part in parts.values()}
    if is_measured:
        found = estimate_costs(parts, limits, (COMPILED, TIMED))
        return found.metrics, found.refusal, units
    metrics = static_costs(parts)
    return metrics, violation(limits, metrics), units


def _kept(limits: Sequence['Limit'], known: Sequence[Mapping[str, float]]) -> list[Kept]:
    """Counts the samples within each limit, and within all limits on costs."""
    from paxtune.objectives.limits import violation

    found, on_costs = [], []
    for limit in limits:
        known_to_limit = [metrics for metrics in known if limit.selector.matches(metrics)]
        if known_to_limit:
            on_costs.append(limit)
            kept = sum(limit.violation(metrics) is None for metrics in known_to_limit)
            found.append(Kept(limit.label, kept, len(known_to_limit)))
    if on_costs:
        kept = sum(violation(on_costs, metrics) is None for metrics in known)
        found.append(Kept('all of them', kept, len(known)))
    return found


def show_costs(found: Costs, console: 'Console') -> None:
    """Prints the distribution of costs, and the reasons of infeasible samples."""
    num_infeasible = len(found.reasons)
    if num_infeasible < found.num_samples:
        headings = ['cost', 'least', '10 %', 'median', '90 %', 'most', 'least to most', 'scale']
        rows = [
            [title.format(unit=found.unit), *_row(found.values[name])]
            for name, title in _TITLES.items()
            if name in found.values
        ]
        title = f'Costs of {found.num_samples - num_infeasible} samples'
        print_table(console, Table.of(title, headings, rows))
    if found.limits:
        rows = [
            [each.limit, f'{each.kept} of {each.known}', f'{each.kept / each.known:.0%}']
            for each in found.limits
        ]
        table = Table.of('Limits', ['limit', 'samples that keep to it', 'share'], rows)
        print_table(console, table)
    if num_infeasible:
        print_line(console, f'{num_infeasible} of {found.num_samples} samples are infeasible:')
        reasons = commonest(found.reasons)
        for count, reason in reasons[:_MAX_REASONS]:
            print_line(console, f'  {count} × {reason}')
        if len(reasons) > _MAX_REASONS:
            print_line(console, f'  and {len(reasons) - _MAX_REASONS} other reasons')


def _row(values: Sequence[float]) -> list[str]:
    is_log = is_wide(values)
    return [
        *map(_number, spread(values)),
        histogram(values, _BINS, is_log),
        'log' if is_log else 'linear',
    ]


def spread(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Computes the minimum, the deciles 1, 5 and 9 with linear interpolation, and the maximum.

    Example:
        >>> spread([float(n) for n in range(21)])
        (0.0, 2.0, 10.0, 18.0, 20.0)
    """
    # `quantiles` needs two values; a doubled single value is its own quantiles.
    twice = [*values, *values] if len(values) == 1 else values
    deciles = statistics.quantiles(twice, n=10, method='inclusive')
    return min(values), deciles[0], deciles[4], deciles[8], max(values)


def is_wide(values: Collection[float]) -> bool:
    """Returns True if a log scale shows the values better."""
    return min(values) > 0 and max(values) / min(values) > _WIDE


def histogram(values: Sequence[float], bins: int, is_log: bool = False) -> str:
    """Draws a histogram, one character for each bin. Bins with a value are never blank.

    Example:
        >>> histogram([1, 1, 1, 1, 2, 5], 5)
        '█▂  ▂'
        >>> histogram([1, 10, 100], 3, is_log=True)
        '███'
    """
    at = [math.log(value) for value in values] if is_log else values
    least, width = min(at), (max(at) - min(at)) / bins
    counts = [0] * bins
    for each in at:
        counts[min(int((each - least) / width), bins - 1) if width else bins // 2] += 1
    return ''.join(_BLOCKS[math.ceil(8 * count / max(counts))] for count in counts)


def _number(value: float) -> str:
    return f'{int(value):,}' if value >= 1 or value == 0 else f'{value:.3g}'
