"""Comparison of schedulers on one table: their costs and results."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paxtune.algorithms.base import Algorithm
from paxtune.reports.tables import Document, Table
from paxtune.schedulers.base import Scheduler
from paxtune.simulate.result import Run
from paxtune.simulate.simulator import simulate
from paxtune.simulate.table import CurveTable

_REPLICATES = 1000
_HOUR = 3600.0
_LONGER = 4  # Runs towards a target may have this multiple of the trials.


@dataclasses.dataclass(frozen=True)
class Interval:
    """A median over seeds, with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> 'Interval':
        """The interval of values, one for each seed."""
        drawn = np.random.default_rng(0).choice(np.array(values, float), (_REPLICATES, len(values)))
        low, high = np.quantile(np.median(drawn, axis=-1), [0.025, 0.975])
        return cls(statistics.median(values), float(low), float(high))

    def __str__(self) -> str:
        return f'{self.median:.4g} ({self.low:.4g}–{self.high:.4g})'


@dataclasses.dataclass(frozen=True)
class Summary:
    """The results of a scheduler over all seeds.

    Attributes:
        scheduler: its name.
        compute: the median of the compute, relative to the full run with the same seed.
        time: the median of the time on the simulated clock, in the table's unit.
        best: the best reward; None if a run has no completed trial.
        regret: the distance of the best reward from the table's: 0 for its best, 1 for its median.
        to_median: the median compute until a trial is as good as the median best of full runs, in
            the table's unit; None if most runs end before.
        reached: the share of runs that were as good, with up to four times the trials.
        outcomes: the mean numbers of trials by final state.
        rungs: the steps at which trials were stopped or paused, over all seeds: `step`, `cut` and
            `correlation` (the median of the known ones).
    """

    scheduler: str
    compute: float
    time: float
    best: Interval | None
    regret: Interval
    to_median: float | None
    reached: float
    outcomes: Mapping[str, float]
    rungs: Sequence[Mapping[str, Any]]


def compare(
    table: CurveTable,
    schedulers: Mapping[str, Scheduler | None],
    algorithm: Algorithm,
    *,
    num_trials: int,
    workers: int,
    seeds: int,
) -> list[Summary]:
    """Runs every scheduler on a table, with the same seeds.

    Args:
        schedulers: by name; None for full runs.
        workers: the number of trials that run at once.
        seeds: the number of runs of each scheduler.

    Raises:
        UserError: as `simulate`.
    """

    def runs(scheduler: Scheduler | None, trials: int = num_trials, **more: Any) -> list[Run]:
        each = {'num_trials': trials, 'workers': workers, **more}
        return [simulate(table, scheduler, algorithm, seed=seed, **each) for seed in range(seeds)]

    full = runs(None)
    bests = [each.best for each in full]
    target = _median_best(table, bests)
    most = min(_LONGER * num_trials, len(table.rows))
    found = []
    for name, scheduler in schedulers.items():
        own = full if scheduler is None else runs(scheduler)
        longer = [] if target is None else runs(scheduler, most, target=target)
        found.append(_summary(name, own, full, longer, target))
    return found


def _median_best(table: CurveTable, bests: Sequence[float | None]) -> float | None:
    """The median best reward, the worse of two; None if most runs have none."""
    scores = [-math.inf if each is None else table.reward.score(each) for each in bests]
    median = statistics.median_low(scores)
    return None if median == -math.inf else table.reward.score(median)


def _summary(
    name: str, runs: Sequence[Run], full: Sequence[Run], longer: Sequence[Run], target: float | None
) -> Summary:
    bests = [each.best for each in runs]
    costs = [] if target is None else [each.compute_to(target) for each in longer]
    median = statistics.median_high(
        [math.inf if each is None else each for each in costs or [None]]
    )
    compared = zip(runs, full, strict=True)
    return Summary(
        name,
        statistics.median(own.compute / other.compute for own, other in compared),
        statistics.median(each.time for each in runs),
        Interval.of([each for each in bests if each is not None]) if None not in bests else None,
        Interval.of([each.regret for each in runs]),
        median if math.isfinite(median) else None,
        sum(each is not None for each in costs) / len(runs),
        _mean_outcomes(runs),
        _rungs(runs),
    )


def _mean_outcomes(runs: Sequence[Run]) -> dict[str, float]:
    counts = [each.outcomes() for each in runs]
    kinds = ('completed', 'stopped', 'infeasible')
    return {kind: statistics.fmean(each.get(kind, 0) for each in counts) for kind in kinds}


def _rungs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    by_step: dict[int, list[tuple[int, float | None]]] = {}
    for run in runs:
        for rung in run.rungs():
            by_step.setdefault(rung.step, []).append((rung.cut, rung.correlation))
    found = []
    for step, rungs in sorted(by_step.items()):
        known = [each for _, each in rungs if each is not None]
        found.append(
            {
                'step': step,
                'cut': sum(cut for cut, _ in rungs) / len(runs),
                'correlation': statistics.median(known) if known else None,
            }
        )
    return found


def document(table: CurveTable, summaries: Sequence[Summary], title: str) -> Document:
    """The report of `python -m paxtune.simulate`, with a title for people."""
    time = 'hours' if table.unit == 'seconds' else 'elapsed_steps'
    scale = _HOUR if table.unit == 'seconds' else 1.0
    to_median = f'{"hours" if table.unit == "seconds" else "steps"}_to_median'
    data, flat, rendered = [], [], []
    for each in summaries:
        facts: dict[str, Any] = {
            'scheduler': each.scheduler,
            'compute': each.compute,
            time: each.time / scale,
            to_median: None if each.to_median is None else each.to_median / scale,
            'reached': each.reached,
            **each.outcomes,
        }
        best = None if each.best is None else dataclasses.asdict(each.best)
        regret = dataclasses.asdict(each.regret)
        data.append(facts | {'best': best, 'regret': regret, 'rungs': each.rungs})
        medians = {'best': each.best and each.best.median, 'regret': each.regret.median}
        flat.append(facts | medians)
        intervals = {'best': str(each.best or ''), 'regret': str(each.regret)}
        rendered.append(facts | intervals | {'rank correlation': _correlation(each)})
    columns = ['scheduler', 'compute', time, 'best', 'regret', to_median, 'reached']
    columns += ['completed', 'stopped', 'infeasible']
    remark = (
        'compute: relative to full runs. regret: 0 is the best of the table, 1 its median. '
        f'{to_median}: until a trial is as good as the median best of full runs; reached: the '
        f'share of runs that were, given up to {_LONGER} times the trials. Medians over seeds, '
        'with 95 % intervals. rank correlation: of the rewards where trials were stopped or paused '
        'with the ends.'
    )
    if table.left_out:
        remark += f' Left out: {table.left_out} trials of the table that were stopped early.'
    tables = [Table(rendered, [*columns, 'rank correlation'], title)]
    return Document(data, flat, columns, tables, remark)


def _correlation(summary: Summary) -> str:
    """The correlations at the steps at which most trials were cut."""
    most = sorted(summary.rungs, key=lambda each: -each['cut'])[:3]
    known = [each for each in most if each['correlation'] is not None]
    known.sort(key=lambda each: int(each['step']))
    return ', '.join(f'{each["step"]}: {each["correlation"]:.2f}' for each in known)
