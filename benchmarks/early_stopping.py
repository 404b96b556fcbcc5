"""Compute that schedulers save over full runs, for a result that is as good.

    python benchmarks/early_stopping.py --check

Part 1, in paxtune's simulator: eight tables of TaskSet (`benchmarks/search/tables.py`), from
`--data_dir`. They are in the repository of DPL, https://github.com/releaunifreiburg/DPL, as
<data_dir>/taskset/FixedTextRNNClassification_*.npz with `hp_names`, `hp` [1000, 8] and `valid_loss`
[1000, 51]. Missing tables are left out, and a line says so. Trials are drawn at random, the same
ones for every scheduler, 100 seeds, one worker. Only `defaults` has the default algorithm beside
the adaptive scheduler, as a search that names neither; 20 seeds. Compute is counted in evaluations:
a full trial is trained for 51, one that diverges until it does.

The target of a table is the median over the seeds of the best of 64 full trials. A run ends when a
trial that was trained to its end is as good; it may begin as many trials as it needs, until all
1,000 rows are used. The saving of a scheduler is the median over seeds of the compute of full runs
by the median of its own; over tables, the geometric mean. A run never gets there if the scheduler
ended all rows that are as good. It counts as having trained all rows to their ends. The share of
runs that got there stands beside it. Intervals hold 95 % of what comes of drawing seeds
and tables again.

Beside that: what 64 trials cost by full runs, and their normalized regret, (best - best of the
table) / (median of the table - best of the table), both in the mean.

Goals: ASHA needs 3.5 times less than full runs, promoting ASHA 4.5 times, the median rule 1.4, and
the adaptive scheduler 3.8.

Part 2, also in the simulator: families of synthetic curves that cross
(`benchmarks/common/crossing_curves.py`). The rank correlation of losses at a quarter of the budget
with those at the end is 0.2 to 0.95. Each family has tables of 1,000 curves, of several generator
seeds.
Goals: on no family does the adaptive scheduler need more than 1.1 times the compute of full runs,
in the geometric mean over its tables. Each of its runs reaches its target.

Then families whose winners begin late (`crossing_curves.LATE`), which a rank correlation hardly
shows. Goal: where winners begin in the second quarter, the adaptive scheduler needs at most 1.1
times the compute of full runs, and 90 % of its runs reach the target. Winners that begin behind
have no goal: to see one, a trial of its place has to be trained to its end, and few are winners.

Constants of the adaptive scheduler were chosen on TaskSet and on other generated families:
`benchmarks/results/early_stopping.md` says which. No family here chose them.

Part 3, with `--real`: `lm.StdlibTunable` is really trained, the same trials without a scheduler,
with ASHA, and with promoting ASHA, one after another in --work_dir. It prints the steps, the best
reward, and the rank correlations at the rungs.

`--quick` has 2 tables, 2 families and 3 seeds, without `defaults`. `--seeds` changes the number of
seeds, and `--only` names the schedulers. `--check` exits with 1 where one of them misses its goal.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import multiprocessing
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

from benchmarks.common import crossing_curves
from benchmarks.search import tables
from paxtune.algorithms import Default, RandomSearch, Suggestion, SuggestionContext
from paxtune.schedulers import (
    Adaptive,
    Asha,
    Hyperband,
    MedianStopping,
    PromotingAsha,
    Scheduler,
)
from paxtune.schedulers.rungs import default_min_resource
from paxtune.simulate.files import read
from paxtune.simulate.simulator import simulate
from paxtune.simulate.table import CurveTable

ROOT = Path(__file__).parents[1]
TRIALS, SEEDS = 64, 100
CROSSING_SEEDS = 100  # Runs on each table of a family: of 20, the median is off by some 25 %.
QUICK_SEEDS = 3
GENERATOR_SEEDS = (0, 1, 2)
"""Each family has a table of each."""
FULL = 'full'
LOWEST = default_min_resource(range(1, 52), 51)
"""The choice of `--scheduler=asha` for 51 evaluations: the second one."""
DEFAULTS, DEFAULTS_SEEDS = 'defaults', 20
GOALS = {'asha': 3.5, 'promoting_asha': 4.5, 'median': 1.4, 'adaptive': 3.8}
MAX_RATIO = 1.1
"""The most compute that the adaptive scheduler may need on a family, by that of full runs."""
LATE_REACHED = 0.9
"""The share of its runs that reach the target, where winners begin late."""
WITHOUT_GOAL = ('third quarter', 'bottom')
"""Families of late winners that have none."""
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
        'adaptive': Adaptive(min_resource=LOWEST),
        DEFAULTS: Adaptive(min_resource=LOWEST),
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
    """Results of the schedulers on one table of TaskSet."""
    return of_curves(read(str(file), 'valid_loss', 'minimize'), seeds, names)


def of_family(
    kind: str, correlation: float | None, generator_seed: int, seeds: int, names: Sequence[str]
) -> dict[str, Found]:
    """Results of the schedulers on one table of a family; of `LATE` without a correlation."""
    if correlation is None:
        return of_curves(crossing_curves.late(kind, generator_seed), seeds, names)
    return of_curves(crossing_curves.family(kind, correlation, generator_seed), seeds, names)


def of_curves(table: CurveTable, seeds: int, names: Sequence[str]) -> dict[str, Found]:
    """Results of the schedulers on recorded curves."""
    _SUGGESTIONS.clear()  # They are of another table's space.
    random = functools.partial(simulate, table, algorithm=Remembered())
    full = [random(None, num_trials=TRIALS, seed=seed) for seed in range(seeds)]
    target = statistics.median(each.best for each in full if each.best is not None)
    everything = sum(row.steps for row in table.rows)
    found = {}
    for name in names:
        scheduler, began = schedulers()[name], time.process_time()
        run, own_seeds = random, range(seeds)
        if name == DEFAULTS:
            run = functools.partial(simulate, table, algorithm=Default())
            own_seeds = range(min(seeds, DEFAULTS_SEEDS))
        short = [run(scheduler, num_trials=TRIALS, seed=seed) for seed in own_seeds]
        long = [
            run(scheduler, num_trials=len(table.rows), seed=seed, target=target)
            for seed in own_seeds
        ]
        needed = [each.compute_to(target) for each in long]
        found[name] = Found(
            [everything if at is None else at for at in needed],
            [each is not None for each in needed],
            [own.compute / full[seed].compute for seed, own in zip(own_seeds, short, strict=True)],
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
    pairs = [[of[FULL].needed, of[name].needed] for of in found.values() if name in of]
    exact = [[statistics.median(each) for each in pair] for pair in pairs]
    rng, count = np.random.default_rng(0), len(pairs)
    logs = np.empty((_REPLICATES, count))
    for i, pair in enumerate(pairs):
        count_of_own = len(pair[1])
        seeds = rng.integers(count_of_own, size=(_REPLICATES, count_of_own))
        full, own = (np.median(np.array(each, float)[seeds], -1) for each in pair)
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


def simulated(args: argparse.Namespace, pool: ProcessPoolExecutor) -> dict[str, float]:
    """Part 1. Returns the savings by scheduler; nothing where there are no tables."""
    for name in tables.missing(args.data_dir):
        print(f'left out: {name}, which is not in {args.data_dir / "taskset"}')
    there = [name for name in tables.NAMES if name not in tables.missing(args.data_dir)]
    there, seeds = (there[2:4], QUICK_SEEDS) if args.quick else (there, args.seeds or SEEDS)
    names = _names(args)
    if not there:
        return {}
    jobs = {
        name: pool.submit(of_table, tables.path(args.data_dir, name), seeds, names)
        for name in there
    }
    found = {name.removeprefix('imdb_'): job.result() for name, job in jobs.items()}
    savings = show(found, names)
    for label, part in (('1, 3, 5, 7', tables.NAMES[::2]), ('2, 4, 6, 8', tables.NAMES[1::2])):
        some = {name: of for name, of in found.items() if f'imdb_{name}' in part}
        texts = [f'{name} {saving(some, name)[0]:.2f}' for name in names if some]
        print(f'tables {label}: {", ".join(texts)}')
    return savings


def _names(args: argparse.Namespace) -> list[str]:
    """The schedulers that the flags ask for; full runs come first."""
    if not args.only:
        return [name for name in schedulers() if not (args.quick and name == DEFAULTS)]
    names = [FULL, *(name for name in args.only.split(',') if name != FULL)]
    if unknown := sorted({*names} - {*schedulers()}):
        sys.exit(f'not there: {", ".join(unknown)}; there are {", ".join(schedulers())}')
    return names


# --- Curves that cross ---


def crossing(args: argparse.Namespace, pool: ProcessPoolExecutor) -> dict[str, float]:
    """Part 2. Returns the worst family's compute by that of full runs, by scheduler."""
    # The decisions of these curves say nothing: no algorithm helps.
    names = [name for name in _names(args) if name != DEFAULTS]
    worst = dict.fromkeys(names, 0.0)
    seeds = QUICK_SEEDS if args.quick else args.seeds or CROSSING_SEEDS
    families: list[tuple[str, float | None]] = [
        *itertools.product(crossing_curves.KINDS, crossing_curves.CORRELATIONS),
        *((name, None) for name in crossing_curves.LATE),
    ]
    if args.quick:  # Runs on families of 0.2 train nearly all rows, which takes minutes.
        families = families[3:13:9]
    generator_seeds = GENERATOR_SEEDS[:1] if args.quick else GENERATOR_SEEDS
    jobs = {
        family: [pool.submit(of_family, *family, seed, seeds, names) for seed in generator_seeds]
        for family in families
    }
    print(f'\n{"compute to the target, by full":34}' + ''.join(f'{name:>16}' for name in names))
    for (kind, correlation), own in jobs.items():
        parts = [job.result() for job in own]
        cells = {name: _needs(parts, name) for name in names}
        texts = [f'{ratio:.2f} ({reached:.0%})' for ratio, reached in cells.values()]
        label = kind if correlation is None else f'{kind} {correlation}'
        print(f'{label:34}' + ''.join(f'{text:>16}' for text in texts))
        if kind in WITHOUT_GOAL:
            continue
        worst = {name: max(worst[name], cells[name][0]) for name in names}
        if cells.get('adaptive', (0.0, 1.0))[1] < (LATE_REACHED if correlation is None else 1.0):
            worst['adaptive'] = math.inf
    print(f'{"worst of those with a goal":34}' + ''.join(f'{worst[name]:>16.2f}' for name in names))
    return worst


def _needs(parts: Sequence[Mapping[str, Found]], name: str) -> tuple[float, float]:
    """The compute of a scheduler by that of full runs, and the share of runs that got there."""
    logs = [
        math.log(statistics.median(of[name].needed) / statistics.median(of[FULL].needed))
        for of in parts
    ]
    reached = statistics.fmean(statistics.fmean(of[name].reached) for of in parts)
    return math.exp(statistics.fmean(logs)), reached


# --- Real training ---


def real(args: argparse.Namespace) -> dict[str, float]:
    """Part 3. Returns the steps by those of full runs, and the best rewards."""
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
    from paxtune.study.scheduling import TrialScheduling, max_resource

    with paxtune.load_study(str(directory)) as study:
        scheduler = study.scheduler or rungs_of
        best = study.best
        assert best is not None and best.reward is not None
        scheduling = TrialScheduling(
            scheduler,
            study.rewards,
            study.space.spec,
            lambda trial: max_resource(study, trial, scheduler.unit),
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


def main(argv: Sequence[str] | None = None) -> int:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    flags.add_argument('--data_dir', type=Path, default=ROOT.parent / 'shared' / 'data')
    flags.add_argument('--only', help='schedulers, with commas between them')
    flags.add_argument('--seeds', type=int, help='runs on each table; 100 and 20 by default')
    flags.add_argument('--real', action='store_true', help='part 3, instead of the others')
    flags.add_argument('--work_dir', type=Path, help='where --real keeps its studies')
    args = flags.parse_args(argv)
    if args.real:
        print('RESULT ' + json.dumps(real(args)))
        return 0
    spawn = multiprocessing.get_context('spawn')  # JAX has threads, which a fork lacks.
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), spawn) as pool:
        savings = simulated(args, pool)
        worst = crossing(args, pool)
    missed = [
        f'{name} {savings.get(name, 0.0):.2f} times less, {goal} was wanted'
        for name, goal in GOALS.items()
        if name in _names(args) and savings.get(name, 0.0) < goal
    ]
    if worst.get('adaptive', 0.0) > MAX_RATIO:
        missed.append('adaptive on a family of curves: see its worst one, or the reached targets')
    for text in missed:
        print(f'goal missed: {text}')
    result = savings | {f'{name}_worst': value for name, value in worst.items()}
    print('RESULT ' + json.dumps({name: round(value, 3) for name, value in result.items()}))
    return int(args.check and bool(missed))


if __name__ == '__main__':
    sys.exit(main())
