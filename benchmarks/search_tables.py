"""Searches with and without knowledge or earlier studies, on tables: a measure that decides.

    python benchmarks/search_tables.py --check

Problems are the eight tables of TaskSet: see `benchmarks/search_quality.py`, whose cells, crew and
peers these are. Others are named by `--problems`, and have no known values.

Methods: the default algorithm without a prior, with the usual values of Adam, and with mirrored
ones, on the wrong side of the middle of each range. The peer is Optuna's TPE, without these values
and with them queued as its first trial. `--only=METHOD,...` runs some of them.

`default_learning` has one earlier study of another table, a search of 50 trials, and no prior.
Three misleading studies have other scores or numbers. `_negated` changes the sign of all scores.
`_mirrored` mirrors each number in the middle of its range. `_shuffled` has the scores of other
trials. `default_known_parallel_64` runs 64 trials at a time, from `--trials=128` on.

A run's regret is (best so far - optimum) / (median of random draws - optimum), at least 0.01. A
smaller floor adds noise: a few lucky runs decide its mean of logarithms. `10–50` is the mean of the
logarithms after each of these numbers of trials. Ratios are those of geometric means. Their 95 %
intervals hold what comes of drawing seeds and tables again.

Goals, by TPE without and with the same values, and by the default without a prior:
- knowledge: at most 0.3 of TPE's regret after 10 and 25 trials; of TPE with queued values at most
  0.35 after 10, 0.85 after 25, and 1 after 50;
- a wrong prior: at most 1.15 of the regret without one after 25, and 1.1 after 50;
- one earlier study: at most 0.45 of the regret without one after 10; three misleading ones: at most
  1.1 after 10, 25 and 50;
- 64 trials at a time: at most 1.2 of one at a time after 128, both with usual values.

A full run has 50 trials, 100 seeds, and 24 with earlier studies. Cells are kept in `--cache_dir`: a
run that was interrupted goes on. `--quick` has one table, 3 seeds and 25 trials.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import search_quality
from benchmarks.search import flags as shared
from benchmarks.search import methods, regret
from benchmarks.search.cells import Cell
from benchmarks.search.methods import KNOWING, Method
from benchmarks.search.problems import Problem, problems

ROOT = Path(__file__).parents[1]
FLOOR = 0.01
QUICK = ('patch32_GRU64_avg_bs128',)
BUDGETS = (10, 25, 50, 128)
FIRST, LAST = 10, 50
MISLED: Mapping[int, float] = {10: 1.1, 25: 1.1, 50: 1.1}
GOALS: Sequence[tuple[str, str, Mapping[int, float]]] = (
    ('default_known', 'optuna_tpe', {10: 0.3, 25: 0.3}),
    ('default_known', 'optuna_tpe_known', {10: 0.35, 25: 0.85, 50: 1.0}),
    ('default_mirrored', 'default', {25: 1.15, 50: 1.1}),
    ('default_learning', 'default', {10: 0.45}),
    ('default_learning_negated', 'default', MISLED),
    ('default_learning_mirrored', 'default', MISLED),
    ('default_learning_shuffled', 'default', MISLED),
    ('default_known_parallel_64', 'default_known', {128: 1.2}),
)
"""A method, its rival, and the largest ratios of their regrets by numbers of trials."""


def planned(args: argparse.Namespace, all_: Mapping[str, Problem]) -> list[tuple[Method, Cell]]:
    """The cells of this run, the first seeds first."""
    chosen = [each for each in KNOWING if not args.only or each.name in args.only.split(',')]
    on_tables = [name for name, problem in all_.items() if problem.known]
    names = args.problems.split(',') if args.problems else on_tables
    if args.quick and not args.problems:
        names = [name for name in names if name in QUICK]
    trials, most = (25, 3) if args.quick else (args.trials, args.seeds)
    made = [
        (method, Cell(method.name, name, seed, trials, _key(method)))
        for method in chosen
        for name in names
        for seed in range(min(most, method.seeds))
        if trials >= 2 * method.parallel
    ]
    return sorted(made, key=lambda each: each[1].seed)


def _key(method: Method) -> str:
    return f'{methods.fingerprint(method)}{methods.problems_fingerprint()}'


def logs(
    found: search_quality.Found, all_: Mapping[str, Problem], counts: Sequence[int]
) -> dict[str, regret.Logs]:
    """Means over numbers of trials of logarithms of regrets: by method and problem, [seeds]."""
    made: dict[str, dict[str, np.ndarray]] = {}
    for (method, name), cells in found.items():
        runs = [
            [
                regret.regret(cell['values'], all_[name].instance(cell['seed']), count)
                for count in counts
            ]
            for cell in cells
            if len(cell['values']) >= max(counts)
        ]
        if runs:
            made.setdefault(method, {})[name] = regret.logs(runs, FLOOR).mean(-1)
    return dict(made)


def compared(by_label: Mapping[str, Mapping[str, regret.Logs]]) -> dict[str, float]:
    """Prints the regrets and their ratios. Returns the ratios."""
    names = list(dict.fromkeys(name for each in by_label.values() for name in each))
    print(f'\n{"normalized regret":28}' + ''.join(f'{f"after {label}":>24}' for label in by_label))
    for name in names:
        row = [
            str(regret.over_problems(each[name])) if name in each else ''
            for each in by_label.values()
        ]
        print(f'{name:28}' + ''.join(f'{each:>24}' for each in row))
    print('\nratio')
    found: dict[str, float] = {}
    pairs = [(ours, rival) for ours, rival, _ in GOALS] + [('default', 'optuna_tpe')]
    for ours, rival in pairs:
        row = []
        for label, each in by_label.items():
            has_both = ours in each and rival in each
            ratio = regret.ratios(each[ours], [each[rival]]).overall if has_both else None
            row.append(str(ratio or ''))
            if ratio is not None:
                found[f'{ours}_to_{rival}_{label}'] = ratio.value
        print(f'{ours} / {rival}'.ljust(46) + ''.join(f'{each:>24}' for each in row))
    return found


def missed(ratios: Mapping[str, float]) -> list[str]:
    """The goals that are missed, in words.

    Example:
        >>> missed({'default_mirrored_to_default_25': 1.2})
        ['default_mirrored to default after 25: 1.2, at most 1.15']
    """
    found = []
    for ours, rival, limits in GOALS:
        for count, most in limits.items():
            ratio = ratios.get(f'{ours}_to_{rival}_{count}', 0.0)
            if ratio > most:
                found.append(f'{ours} to {rival} after {count}: {ratio:.3g}, at most {most}')
    return found


def main(argv: Sequence[str] | None = None) -> int:
    flags = shared.parser(__doc__)
    flags.add_argument('--check', action='store_true')
    flags.add_argument('--seeds', type=int, default=100)
    flags.add_argument('--trials', type=int, default=LAST)
    flags.add_argument('--only', help='methods, with commas between them')
    flags.add_argument('--problems', help='problems, with commas between them')
    args = shared.parsed(flags, argv)
    all_ = problems(args.data_dir)
    plan = planned(args, all_)
    num_failed = search_quality.run_missing(plan, args.data_dir, args.cache_dir)
    found = search_quality.read(plan, args.cache_dir)
    budgets = [each for each in BUDGETS if each <= (25 if args.quick else args.trials)]
    by_label = {str(count): logs(found, all_, [count]) for count in budgets}
    if budgets[-1] >= LAST:
        by_label[f'{FIRST}–{LAST}'] = logs(found, all_, range(FIRST, LAST + 1))
    ratios = compared(by_label)
    print('RESULT ' + json.dumps({name: round(value, 4) for name, value in ratios.items()}))
    goals_missed = missed(ratios)
    for text in goals_missed:
        print(f'missed: {text}', file=sys.stderr)
    return int(num_failed > 0 or (args.check and bool(goals_missed)))


if __name__ == '__main__':
    sys.exit(main())
