"""Schedulers side by side on one table: what they cost, and what they find."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paxtune.algorithms.base import Algorithm
from paxtune.reports.tables import Document, Table
from paxtune.schedulers.base import Scheduler
from paxtune.simulation.result import Run
from paxtune.simulation.simulator import simulate
from paxtune.simulation.table import CurveTable

FULL = 'none'
"""What runs are called in which all trials are trained to their ends."""

_REPLICATES = 1000
_HOUR = 3600.0
_LONGER = 4  # So many times the trials may be needed to be as good as full runs.


@dataclasses.dataclass(frozen=True)
class Interval:
    """A median over seeds, and the interval that holds 95 % of what comes of drawing them again."""

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
class Standing:
    """How a scheduler did over all seeds.

    Attributes:
        scheduler: what it is called.
        compute: by that of full runs with the same seeds, in the median.
        time: by the simulated clock, in the table's unit, in the median.
        best: the best reward; None where a run without any completed trial is the median.
        regret: how far the best is from the table's: 0 for that, 1 for the median of the table.
        to_median: what it costs until a trial is as good as the median best of full runs, in the
            table's unit, in the median; None where most runs end before.
        reached: the share of the runs that were as good, given up to four times the trials.
        outcomes: how many trials ended how, in the mean.
        rungs: what is known of the steps at which trials were stopped or paused, over all seeds:
            `step`, `cut` and `correlation` (the median of those that there are).
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
) -> list[Standing]:
    """Runs every scheduler on a table, with the same seeds.

    Args:
        table: the recorded curves.
        schedulers: by what they are called; None for full runs.
        algorithm: what proposes trials.
        num_trials: in each run.
        workers: how many trials run at once.
        seeds: how many runs there are of each.

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
        found.append(_standing(name, own, full, longer, target))
    return found


def _median_best(table: CurveTable, bests: Sequence[float | None]) -> float | None:
    """The median best reward, the worse of two; None where most runs have none."""
    scores = [-math.inf if each is None else table.reward.score(each) for each in bests]
    median = statistics.median_low(scores)
    return None if median == -math.inf else table.reward.score(median)


def _standing(
    name: str, runs: Sequence[Run], full: Sequence[Run], longer: Sequence[Run], target: float | None
) -> Standing:
    bests = [each.best for each in runs]
    costs = [] if target is None else [each.compute_to(target) for each in longer]
    median = statistics.median_high(
        [math.inf if each is None else each for each in costs or [None]]
    )
    compared = zip(runs, full, strict=True)
    return Standing(
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


def document(table: CurveTable, standings: Sequence[Standing], what: str) -> Document:
    """What `python -m paxtune.simulate` shows.

    Args:
        table: the table.
        standings: of the schedulers.
        what: was simulated, for people.
    """
    time = 'hours' if table.unit == 'seconds' else 'elapsed_steps'
    scale = _HOUR if table.unit == 'seconds' else 1.0
    to_median = f'{"hours" if table.unit == "seconds" else "steps"}_to_median'
    data: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for each in standings:
        facts = {
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
        told = {'best': str(each.best or ''), 'regret': str(each.regret)}
        shown.append(facts | told | {'rank correlation': _correlation(each)})
    columns = ['scheduler', 'compute', time, 'best', 'regret', to_median, 'reached']
    columns += ['completed', 'stopped', 'infeasible']
    flat = [
        {
            **each,
            'best': each['best'] and each['best']['median'],
            'regret': each['regret']['median'],
        }
        for each in data
    ]
    left_out = (
        f' Left out: {table.left_out} trials of the table that were stopped early: nobody knows '
        'their ends.'
        if table.left_out
        else ''
    )
    return Document(
        data,
        flat,
        columns,
        [Table(shown, [*columns, 'rank correlation'], what)],
        'compute: by that of full runs. regret: 0 is the best of the table, 1 its median. '
        f'{to_median}: until a trial is as good as the median best of full runs; reached: the '
        f'share of runs that were, given up to {_LONGER} times the trials. Medians over seeds, '
        'with 95 % intervals. rank correlation: of the rewards where trials were stopped or paused '
        f'with the ends.{left_out}',
    )


def _correlation(standing: Standing) -> str:
    """The steps at which most trials were cut, each with its correlation."""
    most = sorted(standing.rungs, key=lambda each: -each['cut'])[:3]
    known = [each for each in most if each['correlation'] is not None]
    return ', '.join(
        f'{each["step"]}: {each["correlation"]:.2f}'
        for each in sorted(known, key=lambda each: int(each['step']))
    )
