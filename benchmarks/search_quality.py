"""Quality of the trials of search algorithms, beside Optuna, SMAC, HEBO, Ax and Vizier.

    python benchmarks/search_quality.py --check

Problems: six functions of BBOB in 4 and 20 dimensions (`benchmarks/search/bbob.py`), shifted and
rotated anew for each seed. One problem has ranges, whole numbers and categories, and one has
conditional decisions of which some turn out infeasible (`problems.py`); both are new for each seed.
Eight are tables of TaskSet (`tables.py`), from `--data_dir`. They are in the repository of DPL,
https://github.com/releaunifreiburg/DPL, as <data_dir>/taskset/FixedTextRNNClassification_*.npz with
`hp_names`, `hp` [1000, 8] and `valid_loss` [1000, 51]. Missing tables are left out, and a line says
so. A row whose training diverged to NaN is an infeasible trial. Losses up to 6e18 are reported as
they are.

Methods: paxtune's algorithms; Optuna's TPE and Gaussian process, SMAC, HEBO and Ax; all with their
defaults, one trial after another (`methods.py`). Paxtune's are asked by `Study.ask` and get results
by `Study.tell`, as users call them. They have 20 seeds and 200 trials, and so has Optuna's TPE. The
models that are dear to fit have 50 trials: `gp_bandit`, Optuna's Gaussian process and SMAC with the
first 10 seeds, HEBO and Ax with the first 5. 50 trials of the table patch32_GRU64_avg_bs128 took
SMAC 41 s, Ax 210 s and HEBO 437 s, beside much other work on the machine. Suggestions after 25
trials took Ax 2.5 s and HEBO 5 s with less of it. Stock Vizier takes 8 s for a suggestion, so it
has three problems, 3 seeds and 25 trials; it is no peer in the ratios. `default_parallel` runs 8
trials at a time, 96 in all, and `default_parallel_64` 64, 128 in all. A method that refuses a
problem is left out there, and a line says so: HEBO has no conditions.

Normalized regret is (best so far - optimum) / (median of random draws - optimum): 1 is no better
than one random draw, 0 perfect. Means are geometric, a regret below 0.001 counts as 0.001, and
intervals hold 95 % of what comes of drawing seeds, and problems where several are averaged, again.
Arithmetic means and medians stand beside them: geometric ones depend on few lucky seeds.

Goals, against the best of all peers with a number of trials, on the problems that each has:
- over all problems, after 50 trials: the interval of the ratio of regrets holds 1 or lies below;
- over the tables, after 25, 50 and 100: at most 0.8, after 50 the interval lies below 1;
- on each table, after 25, 50 and 100: at most 1.1;
- with 8 trials at a time, the regret after 96 is at most 1.15 of that with one at a time; with 64,
  the regret after 128 at most 1.2.

Cells (method, problem, seed) are kept in `--cache_dir`, by settings, sources and the versions of
libraries. A run that was interrupted goes on, and only changed cells run again.
Peers are installed into `.venv-search`, `.venv-smac`, `.venv-hebo` and `.venv-ax` when they first
run. A full run takes many hours on two cores, HEBO's part four to six. `--only=METHOD,...` and
`--problems=PROBLEM,...` run a part. `--quick` has 3 problems, 2 seeds and 15 trials. With
`--check`, the exit code is 1 where a goal is missed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.environments import python_of
from benchmarks.search import flags as shared
from benchmarks.search import goals, methods, regret
from benchmarks.search.cells import Cell
from benchmarks.search.crew import Crew
from benchmarks.search.goals import PARALLEL
from benchmarks.search.methods import METHODS, OWN, STOCK, Method
from benchmarks.search.problems import Problem, problems

ROOT = Path(__file__).parents[1]
QUICK = ('rastrigin_4', 'conditional', 'patch32_GRU64_avg_bs128')
BUDGETS = (25, 50, 96, 100, 128, 200)
GOAL_AT = 50

Found = Mapping[tuple[str, str], list[dict[str, Any]]]
"""Results of the cells of a method and a problem, by seed."""


def planned(args: argparse.Namespace, all_: Mapping[str, Problem]) -> list[tuple[Method, Cell]]:
    """The cells of this run, the first seeds first."""
    chosen = [each for each in METHODS if methods.is_available(each)]
    for method in METHODS:
        if method not in chosen:
            print(f'left out: {method.name}, which paxtune does not have')
    if args.only:
        chosen = _named(args.only, {each.name: each for each in chosen})
    names = list(all_)
    if args.problems:
        names = _named(args.problems, {name: name for name in names})
    if args.quick:
        names = [name for name in names if name in QUICK or args.problems]
        chosen = [each for each in chosen if each.name != 'stock_vizier' or args.only]
    made = []
    for method in chosen:
        seeds = min(method.seeds, 2) if args.quick else method.seeds
        for name in names:
            if not method.problems or name in method.problems:
                runs = _method_that_runs(method, all_[name])
                key = f'{methods.fingerprint(runs)}{methods.problems_fingerprint()}'
                trials = min(runs.trials, 15) if args.quick else runs.trials
                made += [
                    (method, Cell(runs.name, name, seed, trials, key)) for seed in range(seeds)
                ]
    return sorted(made, key=lambda each: each[1].seed)


def _method_that_runs(method: Method, problem: Problem) -> Method:
    """The method itself; for the default, what it is on the problem, so that it runs once."""
    if method.name != 'default':
        return method
    from benchmarks.search import ours

    others = {each.name: each for each in METHODS if each.module == 'ours' and each != method}
    there = [name for name, each in others.items() if methods.is_available(each)]
    return others.get(ours.twin(problem, there) or '', method)


def _named(flag: str, things: Mapping[str, Any]) -> list[Any]:
    unknown = [name for name in flag.split(',') if name not in things]
    if unknown:
        sys.exit(f'not there: {", ".join(unknown)}; there are {", ".join(things)}')
    return [things[name] for name in flag.split(',')]


def run_missing(plan: Sequence[tuple[Method, Cell]], data_dir: Path, cache_dir: Path) -> int:
    """Runs the cells that are not kept yet. Returns how many have failed."""
    missing = [(method.where, cell) for method, cell in plan if cell.read(cache_dir) is None]
    todo = list(dict.fromkeys(missing))  # What the default is on a problem may be there itself.
    failures: list[Cell] = []
    began, count = time.time(), 0
    print(f'{len({cell for _, cell in plan})} cells, {len(todo)} of them to be run', flush=True)

    def done(cell: Cell, error: str | None) -> None:
        nonlocal count
        count += 1
        if error is not None:
            failures.append(cell)
            print(f'failed: {cell.method} on {cell.problem}, seed {cell.seed}\n{error}', flush=True)
        if count % 25 == 0:
            minutes = (time.time() - began) / 60
            print(f'{count} of {len(todo)} after {minutes:.1f} min', file=sys.stderr, flush=True)

    def python(where: str) -> Path:
        return Path(sys.executable) if where in (OWN, STOCK) else python_of(where)

    Crew(python, data_dir, cache_dir).run(todo, done)
    return len(failures)


def read(plan: Sequence[tuple[Method, Cell]], cache_dir: Path) -> Found:
    """Reads the results of the cells; prints refused problems."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for method, cell in plan:
        kept = cell.read(cache_dir)
        if kept is not None and 'refused' in kept:
            if cell.seed == 0:
                print(f'refused: {cell.problem} by {method.name}: {kept["refused"]}')
        elif kept is not None:
            found.setdefault((method.name, cell.problem), []).append(kept | {'seed': cell.seed})
    return found


def regrets(found: Found, all_: Mapping[str, Problem], count: int) -> dict[str, regret.Logs]:
    """Logarithms of regrets after a number of trials, by method and problem."""
    logs: dict[str, dict[str, Any]] = {}
    for (method, problem), cells in found.items():
        values = [
            regret.regret(cell['values'], all_[problem].instance(cell['seed']), count)
            for cell in cells
            if len(cell['values']) >= count
        ]
        if values:
            logs.setdefault(method, {})[problem] = regret.logs(values)
    return dict(logs)


def show(found: Found, by_count: Mapping[int, Mapping[str, regret.Logs]]) -> None:
    """The tables."""
    print('\nnormalized regret' + ''.join(f'{f"after {count}":>28}' for count in by_count))
    for method, problem in sorted(found, key=lambda each: each[::-1]):
        intervals = [
            str(regret.over_seeds(logs[method][problem])) if problem in logs.get(method, {}) else ''
            for logs in by_count.values()
        ]
        print(f'{problem:30} {method:22}' + ''.join(f'{each:>28}' for each in intervals))
    print('\ngeometric means over problems')
    for method in dict.fromkeys(method for method, _ in found):
        cells = [cell for (name, _), each in found.items() if name == method for cell in each]
        takes = 1000 * statistics.median(each for cell in cells for each in cell['seconds'])
        intervals = [
            f'{regret.over_problems(logs[method])} of {len(logs[method])}' if method in logs else ''
            for logs in by_count.values()
        ]
        columns = ''.join(f'{each:>30}' for each in intervals)
        print(f'{method:22}{columns}  {takes:7.1f} ms a suggestion')
    print('\narithmetic means (medians) over seeds and problems')
    for method in dict.fromkeys(method for method, _ in found):
        centers = [
            regret.center(logs[method]) if method in logs else () for logs in by_count.values()
        ]
        texts = ('{:.3f} ({:.3f})'.format(*each) if each else '' for each in centers)
        print(f'{method:22}' + ''.join(f'{each:>30}' for each in texts))


def result(by_count: Mapping[int, Mapping[str, regret.Logs]]) -> dict[str, float]:
    """The ratios to the peers, and the means."""
    found: dict[str, float] = {}
    for count, logs in by_count.items():
        found |= goals.to_peers(count, logs)
        for method, (at, _) in PARALLEL.items():
            if at == count and {'default', method} <= set(logs):
                ratio = regret.ratios(logs[method], [logs['default']]).overall
                print(f'after {count}: {method} by one trial at a time {ratio}')
                found[f'{method}_to_sequential'] = ratio.value
        for name, of_method in logs.items():
            found[f'{name}_{count}'] = regret.over_problems(of_method).value
    return found


def main(argv: Sequence[str] | None = None) -> int:
    flags = shared.parser(__doc__)
    flags.add_argument('--check', action='store_true')
    flags.add_argument('--only', help='methods, with commas between them')
    flags.add_argument('--problems', help='problems, with commas between them')
    args = shared.parsed(flags, argv)
    all_ = problems(args.data_dir)
    plan = planned(args, all_)
    num_failed = run_missing(plan, args.data_dir, args.cache_dir)
    found = read(plan, args.cache_dir)
    budgets, goal_at = ((10, 15), 15) if args.quick else (BUDGETS, GOAL_AT)
    by_count = {count: regrets(found, all_, count) for count in budgets}
    by_count = {count: logs for count, logs in by_count.items() if logs}
    show(found, by_count)
    ratios = result(by_count)
    print('RESULT ' + json.dumps({name: round(value, 4) for name, value in ratios.items()}))
    missed = goals.missed(ratios, goal_at, () if args.quick else goals.GOALS_AT)
    for text in missed:
        print(f'missed: {text}', file=sys.stderr)
    return int(num_failed > 0 or (args.check and bool(missed)))


if __name__ == '__main__':
    sys.exit(main())
