"""Names of metrics that a search needs, checked before its first trial."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from paxtune.objectives.metrics import join_name
from paxtune.study.trial_costs import TIMED
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.config.search import Search
    from paxtune.experiment import Tunable


def validate_metrics(search: 'Search', samples: Iterable[Mapping[str, 'Tunable']]) -> None:
    """Raises UserError if a search needs a metric that no sample of its trials has.

    Args:
        samples: trials, each with its experiments by sub-experiment ('' without any). No more are
            traced than needed: each has a loss, for one.
    """
    from trainer.loop.metric_names import certain_names, metric_names

    missing = [(asking, metric) for asking, each in search.metrics.items() for metric in each]
    measured: set[str] = set()  # By any sample that could be traced.
    for parts in samples:
        known = _joined({name: certain_names(part) for name, part in parts.items()})
        missing = [each for each in missing if not each[1].matches(known)]
        if not missing:
            return
        try:
            traced = {name: metric_names(part) for name, part in parts.items()}
        except Exception:
            continue  # These trials will say so; others may not.
        known |= _joined({name: names for name, (names, _) in traced.items()})
        measured |= known
        more = tuple(prefix for _, prefixes in traced.values() for prefix in prefixes)
        missing = [
            (asking, metric)
            for asking, metric in missing
            if not metric.matches(known)
            if not (more and (metric.pattern or metric.name.startswith(more)))
        ]
        if not missing:
            return
    if missing and measured:
        asking, metric = missing[0]
        raise UserError(f'search.{asking}: {metric.missing(measured)}')


def _joined(names: Mapping[str, set[str]]) -> set[str]:
    """Combines the metrics of a trial from its sub-experiments, by name."""
    return {
        join_name(metric, name or None)
        for name, metrics in names.items()
        for metric in (*metrics, TIMED)
    }
