"""Compute that schedulers save over full runs, for a result that is as good.

    python benchmarks/early_stopping.py --check

Part 1, in paxtune's simulator: eight tables of TaskSet (`benchmarks/search/tables.py`), from
`--data_dir`. They are in the repository of DPL, https://github.com/releaunifreiburg/DPL, as
<data_dir>/taskset/FixedTextRNNClassification_*.npz with `hp_names`, `hp` [1000, 8] and `valid_loss`
[1000, 51]. Missing tables are left out, and a line says so. Trials are drawn at random, the same
ones for every scheduler, 100 seeds, one worker. Compute is counted in evaluations: a full trial is
trained for 51, one that diverges until it does.

The target of a table is the median over the seeds of the best of 64 full trials. A run ends when a
trial that was trained to its end is as good; it may begin as many trials as it needs, until all
1,000 rows are used. The saving of a scheduler is the median over seeds of the compute of full runs
by the median of its own; over tables, the geometric mean. A run never gets there if the scheduler
ended all rows that are as good. It counts as having trained all rows to their ends. The share of
runs that got there stands beside it. Intervals hold 95 % of what comes of drawing seeds
and tables again.

Beside that: what 64 trials cost by full runs, and their normalized regret, (best - best of the
table) / (median of the table - best of the table), both in the mean.

Goals: ASHA needs 3.5 times less than full runs, promoting ASHA 4.5 times, the median rule 1.4.

Part 2, with `--real`: `lm.StdlibTunable` is really trained, the same trials without a scheduler,
with ASHA, and with promoting ASHA, one after another in --work_dir. It prints the steps, the best
reward, and the rank correlations at the rungs.

`--quick` has 2 tables and 8 seeds; `--check` exits with 1 where a goal is missed.
"""

import argparse
import dataclasses
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.search import tables
from paxtune.algorithms import RandomSearch, Suggestion, SuggestionContext
from paxtune.schedulers import (
    Asha,
    CurveExtrapolation,
    Hyperband,
    MedianStopping,
    PromotingAsha,
    Scheduler,
)
from paxtune.schedulers.rungs import default_min_resource
from paxtune.simulation.files import read
from paxtune.simulation.simulator import simulate

ROOT = Path(__file__).parents[1]
TRIALS, SEEDS = 64, 100
FULL = 'full'
LOWEST = default_min_resource(range(1, 52), 51)
"""The choice of `--scheduler=asha` for 51 evaluations: the second one."""
GOALS = {'asha': 3.5, 'promoting_asha': 4.5, 'median': 1.4}
_REPLICATES = 2000
_SUGGESTIONS: dict[tuple[int, int], Suggestion] = {}


def schedulers() -> dict[str, Scheduler | None]:
    """The compared schedulers by name."""
    return {
        FULL: None,
        'median': MedianStopping(),
        'asha': Asha(min_resource=LOWEST),
        'promoting_asha': PromotingAsha(min_resource=LOWEST),
        'hyperband': Hyperband(min_resource=LOWEST),
        'extrapolation': CurveExtrapolation(),
    }


class Remembered(RandomSearch):
    """Random search that draws the trials of a seed once: all schedulers are given the same."""

    def suggest(self, context: SuggestionContext) -> Suggestion:
        key = context.seed, context.number
        if key not in _SUGGESTIONS:
            _SUGGESTIONS[key] = super().suggest(context)
        return _SUGGESTIONS[key]


@dataclasses.dataclass(frozen=True)
class Found:
    """Results of a scheduler on a table, a value for each seed.

    Attributes:
        needed: the compute until a trial was as good as the target; that of all rows in full where
            none was.
        reached: whether one was.
        compute: of 64 trials, by that of full runs.
        regret: of their best.
        seconds: that it took to simulate all of this.
    """

    needed: list[float]
    reached: list[bool]
    compute: list[float]
    regret: list[float]
    seconds: float


def of_table(file: Path, seeds: int, names: Sequence[str]) -> dict[str, Found]:
    """Results of the schedulers on one table."""
    table = read(str(file), 'valid_loss', 'minimize')
    _SUGGESTIONS.clear()  # They are of another table's space.
    run = functools.partial(simulate, table, algorithm=Remembered())
    full = [run(None, num_trials=TRIALS, seed=seed) for seed in range(seeds)]
    target = statistics.median(each.best for each in full if each.best is not None)
    everything = sum(row.steps for row in table.rows)
    found = {}
    for name in names:
        scheduler, began = schedulers()[name], time.process_time()
        short = [run(scheduler, num_trials=TRIALS, seed=seed) for seed in range(seeds)]
        long = [
            run(scheduler, num_trials=len(table.rows), seed=seed, target=target)
            for seed in range(seeds)
        ]
        needed = [each.compute_to(target) for each in long]
        found[name] = Found(
            [everything if at is None else at for at in needed],
            [each is not None for each in needed],
            [own.compute / other.compute for own, other in zip(short, full, strict=True)],
            [each.regret for each in short],
            time.process_time() - began,
        )
    return found


def saving(found: Mapping[str, Mapping[str, Found]], name: str) -> tuple[float, float, float]:
    """By how much a scheduler's runs need less than full ones, and the interval around it.

    Args:
        found: by table and scheduler.
        name: of the scheduler.
    """
    pairs = [
        np.array([of[FULL].needed, of[name].needed], float) for of in found.values() if name in of
    ]
    exact = [np.median(each, -1) for each in pairs]
    rng, count = np.random.default_rng(0), len(pairs)
    logs = np.empty((_REPLICATES, count))
    for i, pair in enumerate(pairs):
        seeds = rng.integers(pair.shape[1], size=(_REPLICATES, pair.shape[1]))
        full, own = np.median(pair[:, seeds], -1)
        logs[:, i] = np.log(full / own)
    again = np.take_along_axis(logs, rng.integers(count, size=(_REPLICATES, count)), 1).mean(-1)
    low, high = np.exp(np.quantile(again, [0.025, 0.975]))
    value = math.exp(statistics.fmean(math.log(full / own) for full, own in exact))
    return value, float(low), float(high)


def show(found: Mapping[str, Mapping[str, Found]], names: Sequence[str]) -> dict[str, float]:
    """Prints the tables. Returns the savings."""
    print(f'{"times less compute to the target":34}' + ''.join(f'{name:>16}' for name in names))
    for table, of in found.items():
        full = statistics.median(of[FULL].needed)
        ratios = [full / statistics.median(of[name].needed) for name in names]
        reached = [statistics.fmean(of[name].reached) for name in names]
        cells = [f'{ratio:.2f} ({share:.0%})' for ratio, share in zip(ratios, reached, strict=True)]
        print(f'{table:34}' + ''.join(f'{each:>16}' for each in cells))
    print('in brackets: the share of the runs that reached the target\n')
    print(
        f'{"scheduler":16}{"times less":>24}{"64 trials: compute":>22}{"regret":>10}{"CPU s":>10}'
    )
    savings = {}
    for name in names:
        value, low, high = saving(found, name)
        savings[name] = value
        cost, regret = (
            statistics.fmean(statistics.fmean(getattr(of[name], field)) for of in found.values())
            for field in ('compute', 'regret')
        )
        seconds = sum(of[name].seconds for of in found.values())
        interval = f'{value:.2f} ({low:.2f}–{high:.2f})'
        print(f'{name:16}{interval:>24}{cost:>22.3f}{regret:>10.3f}{seconds:>10.1f}')
    return savings


def simulated(args: argparse.Namespace) -> dict[str, float]:
    """Part 1. Returns the savings by scheduler; nothing where there are no tables."""
    for name in tables.missing(args.data_dir):
        print(f'left out: {name}, which is not in {args.data_dir / "taskset"}')
    there = [name for name in tables.NAMES if name not in tables.missing(args.data_dir)]
    there, seeds = (there[2:4], 8) if args.quick else (there, SEEDS)
    names = list(schedulers())
    if args.only:
        names = [FULL, *(name for name in args.only.split(',') if name != FULL)]
        if unknown := sorted({*names} - {*schedulers()}):
            sys.exit(f'not there: {", ".join(unknown)}; there are {", ".join(schedulers())}')
    if not there:
        return {}
    files = [tables.path(args.data_dir, name) for name in there]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = [pool.submit(of_table, file, seeds, names) for file in files]
        found = {
            name.removeprefix('imdb_'): job.result() for name, job in zip(there, jobs, strict=True)
        }
    return show(found, names)


# --- Real training ---


def real(args: argparse.Namespace) -> dict[str, float]:
    """Part 2. Returns the steps by those of full runs, and the best rewards."""
    trials, steps, every = (4, 30, 5) if args.quick else (27, 270, 15)
    lowest = every * (1 if args.quick else 2)
    asked = {
        FULL: 'none',
        'asha': f'Asha(min_resource={lowest})',
        'promoting_asha': f'PromotingAsha(min_resource={lowest})',
    }
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, scheduler in asked.items():
            directory = (args.work_dir or Path(scratch)).resolve() / name
            began = time.perf_counter()
            _search(directory, scheduler, trials, steps, every)
            found = _read(directory, Asha(min_resource=lowest))
            minutes = (time.perf_counter() - began) / 60
            print(
                f'{name}: {found["steps"]:.0f} steps, best {found["best"]:.5f}, '
                f'{found["completed"]} of {trials} trials completed, {minutes:.1f} min'
            )
            for rung in found['rungs']:
                print(f'  {rung}')
            if found['warning']:
                print(f'  {found["warning"]}')
            result[f'real_{name}_steps'] = found['steps']
            result[f'real_{name}_best'] = round(found['best'], 5)
    for name in asked:
        if name != FULL:
            full = result[f'real_{FULL}_steps']
            result[f'real_{name}_times_less'] = round(full / result[f'real_{name}_steps'], 3)
    return result


def _search(directory: Path, scheduler: str, trials: int, steps: int, every: int) -> None:
    command = [
        *[sys.executable, '-m', 'paxtune.search', '--exp=lm.StdlibTunable'],
        *[f'--scheduler={scheduler}', f'--num_trials={trials}', '--algorithm=random_search'],
        *[f'--job_log_dir={directory}', '--set', f'train.num_train_steps={steps}'],
        f'train.evaluation.every={every}',
    ]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _read(directory: Path, rungs_of: Scheduler) -> dict[str, Any]:
    """Reads the results of a study.

    Args:
        directory: of the study.
        rungs_of: whose rungs are looked at, where the study had no scheduler.
    """
    import paxtune
    from paxtune.schedulers.rung_report import rung_report, warning
    from paxtune.study.max_resource import max_resource
    from paxtune.study.scheduling import TrialScheduling

    with paxtune.load_study(str(directory)) as study:
        scheduler = study.search.scheduler or rungs_of
        best = study.best
        assert best is not None and best.reward is not None
        scheduling = TrialScheduling(
            scheduler, study.rewards, lambda trial: max_resource(study, trial, scheduler.unit)
        )
        rungs = rung_report(scheduling.curves(study.trials), scheduler)
        return {
            'steps': float(sum(max((m.step for m in t.measurements), default=0)
                               for t in study.trials)),
            'best': best.reward,
            'completed': len(study.candidates),
            'rungs': rungs,
            'warning': warning(rungs, scheduler.unit),
        }  # fmt: skip


def main() -> int:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    flags.add_argument('--data_dir', type=Path, default=ROOT.parent / 'shared' / 'data')
    flags.add_argument('--only', help='schedulers, with commas between them')
    flags.add_argument('--real', action='store_true', help='part 2, instead of part 1')
    flags.add_argument('--work_dir', type=Path, help='where --real keeps its studies')
    args = flags.parse_args()
    if args.real:
        print('RESULT ' + json.dumps(real(args)))
        return 0
    savings = simulated(args)
    missed = {name: goal for name, goal in GOALS.items() if savings.get(name, 0.0) < goal}
    for name, goal in missed.items():
        print(f'goal missed: {name} {savings.get(name, 0.0):.2f} times less, {goal} was wanted')
    print('RESULT ' + json.dumps({name: round(value, 3) for name, value in savings.items()}))
    return int(args.check and bool(missed))


if __name__ == '__main__':
    sys.exit(main())
