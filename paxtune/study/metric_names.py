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
            traced than needed.
    """
    from trainer.loop.metric_names import metric_names

    missing = [(asking, metric) for asking, each in search.metrics.items() for metric in each]
    known: set[str] = set()
    for parts in samples:
        if not missing:
            return
        try:
            traced = {name: metric_names(part) for name, part in parts.items()}
        except Exception:
            continue  # These trials will say so; others may not.
        known |= {
            join_name(metric, name or None)
            for name, (names, _) in traced.items()
            for metric in (*names, TIMED)
        }
        more = tuple(prefix for _, prefixes in traced.values() for prefix in prefixes)
        missing = [
            (asking, metric)
            for asking, metric in missing
            if not metric.matches(known)
            if not (more and (metric.pattern or metric.name.startswith(more)))
        ]
    if missing and known:
        asking, metric = missing[0]
        raise UserError(f'search.{asking}: {metric.missing(known)}')
