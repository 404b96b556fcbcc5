"""Fronts of two objectives, beside those of Ax, Optuna and NSGA-II.

    python benchmarks/hypervolume.py --check

Problems (`benchmarks/search/fronts.py`): ZDT1 with ranges, whole numbers and categories; DTLZ2;
Branin and Currin; C2-DTLZ2, of which most is infeasible; the loss and the size of models, with
conditional decisions. Seeds move the best decisions. ZDT2, Fonseca's and Binh's functions are those
that constants may be chosen on: `--problems=zdt2_mixed,fonseca,binh_korn` runs them.

Methods: our default, NSGA-II and quasi-random points; Optuna's Gaussian process and NSGA-II; Ax.
All have their defaults, 50 trials one after another, and 20 seeds. None knows the reference. An
infeasible trial is one that failed, and has no values.

The remaining volume is the share of the best hypervolume that the trials do not dominate. It is 1
before the first trial below the problem's reference, and 0 for the whole front. Means are
geometric, and a share below 0.001 counts as 0.001. Intervals hold 95 % of what drawing seeds and
problems again gives.

Goals: over all problems and after 50 trials, the default has at most the remaining volume of Ax and
of Optuna's Gaussian process, and at most 0.6 of NSGA-II's.

Cells are kept in `--cache_dir`, as those of `benchmarks/search_quality.py`. Peers are installed
into `.venv-search` and `.venv-ax` when they first run. `--only=METHOD,...` and `--seeds=N` run a
part. `--quick` has two problems, 2 seeds and 15 trials, without Ax. With `--check`, the exit code
is 1 where a goal is missed.
"""

import argparse
import hashlib
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.search import methods, regret
from benchmarks.search.cells import Cell
from benchmarks.search.fronts import FrontProblem, area, front_problems
from benchmarks.search.methods import FRONT_METHODS, ROOT, Method
from benchmarks.search_quality import Found, read, run_missing

GOALS = {'ax': 1.0, 'optuna_gp': 1.0, 'nsga2': 0.6}
QUICK = ('zdt1_mixed', 'branin_currin')
AT = (25, 50)


def planned(args: argparse.Namespace) -> list[tuple[Method, Cell]]:
    """The cells of this run, the first seeds first."""
    names = (
        args.problems.split(',')
        if args.problems
        else list(QUICK)
        if args.quick
        else [each.name for each in front_problems().values() if each.is_reported]
    )
    chosen = [each for each in FRONT_METHODS if not args.only or each.name in args.only.split(',')]
    if args.quick and not args.only:
        chosen = [each for each in chosen if each.name != 'ax']
    sources = (ROOT / 'benchmarks' / 'search' / name for name in ('fronts.py', 'problems.py'))
    digest = hashlib.sha256(b''.join(source.read_bytes() for source in sources)).hexdigest()[:12]
    count, seeds = (15, min(args.seeds, 2)) if args.quick else (AT[-1], args.seeds)
    return [
        (each, Cell(each.name, name, seed, count, f'{methods.fingerprint(each)}{digest}'))
        for seed in range(seeds)
        for each in chosen
        for name in names
    ]


def remaining(
    results: Sequence[Sequence[float] | None], problem: FrontProblem, best: float
) -> float:
    """Share of the best volume that the trials do not dominate.

    Example:
        >>> problem = front_problems()['dtlz2']
        >>> round(remaining([None, (0.1, 0.9)], problem, 1.0), 2)
        0.8
    """
    points = np.array([each for each in results if each is not None], float)
    return 1.0 - area(points.reshape(-1, problem.num_objectives), problem.reference) / best


def shares(found: Found, count: int) -> dict[str, regret.Logs]:
    """Logarithms of the remaining volumes after a number of trials, by method and problem."""
    logs: dict[str, dict[str, np.ndarray]] = {}
    for (method, name), cells in found.items():
        problem = front_problems()[name]
        values = [
            remaining(cell['values'][:count], problem, problem.instance(cell['seed']).best)
            for cell in cells
        ]
        logs.setdefault(method, {})[name] = regret.logs(values)
    return dict(logs)


def show(found: Found, by_count: Mapping[int, Mapping[str, regret.Logs]]) -> None:
    """Prints the remaining volumes, by problem and over all."""
    print('remaining volume' + ''.join(f'{f"after {count}":>28}' for count in by_count))
    for method, problem in sorted(found, key=lambda each: each[::-1]):
        texts = [str(regret.over_seeds(logs[method][problem])) for logs in by_count.values()]
        print(f'{problem:16} {method:16}' + ''.join(f'{each:>28}' for each in texts))
    for method in dict.fromkeys(method for method, _ in found):
        cells = [cell for (name, _), each in found.items() if name == method for cell in each]
        takes = 1000 * statistics.median(each for cell in cells for each in cell['seconds'])
        texts = [str(regret.over_problems(logs[method])) for logs in by_count.values()]
        columns = ''.join(f'{each:>28}' for each in texts)
        print(f'{"all":16} {method:16}{columns}  {takes:7.1f} ms a suggestion')


def main(argv: Sequence[str] | None = None) -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    flags.add_argument('--cache_dir', type=Path, default=Path('~/.cache/paxtune/hypervolume'))
    flags.add_argument('--only', help='methods, with commas between them')
    flags.add_argument('--problems', help='problems, with commas between them')
    flags.add_argument('--seeds', type=int, default=20)
    args = flags.parse_args(argv)
    cache_dir = args.cache_dir.expanduser().resolve()
    cache_dir.mkdir(parents=True, exist_ok=True)
    plan = planned(args)
    num_failed = run_missing(plan, ROOT, cache_dir)
    found = read(plan, cache_dir)
    by_count = {count: shares(found, count) for count in ((15,) if args.quick else AT)}
    show(found, by_count)
    result: dict[str, float] = {}
    missed = []
    for count, logs in by_count.items():
        for peer in logs:
            if 'default' in logs and peer != 'default':
                ratio = regret.ratios(logs['default'], [logs[peer]]).overall
                print(f'after {count}: default by {peer} {ratio}')
                result[f'default_to_{peer}_{count}'] = round(ratio.value, 4)
    for peer, most in GOALS.items():
        value = result.get(f'default_to_{peer}_{AT[-1]}', 0.0)
        if value > most:
            missed.append(f'{peer}: {value:.3g}, at most {most}')
    print('RESULT ' + json.dumps(result))
    for text in missed:
        print(f'missed: {text}', file=sys.stderr)
    return int(num_failed > 0 or (args.check and bool(missed)))


if __name__ == '__main__':
    sys.exit(main())
