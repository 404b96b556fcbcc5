"""Regret of a search that learns from earlier studies, of other tasks and of misleading ones.

    python benchmarks/earlier_studies.py --seeds=4

The search is `Portfolio` without known values, on the eight tables of TaskSet in `--data_dir` (see
`search_quality.py`). An earlier study is a search of 50 trials of another table; its numbers are
moved into the ranges of the searched table. The other tables change with the seed. Conditions:

- `one`: one earlier study;
- `negated`: three, with the sign of all scores changed;
- `mirrored`: three, with each number mirrored in the middle of its range on its scale;
- `shuffled`: three, whose scores belong to other trials.

It prints the ratio of regrets to those of the same search without earlier studies: geometric mean,
floor 0.01, and the factor of a 95 % interval over the runs.
`--quick` has 2 tables, 1 seed and 12 trials.
"""

import argparse
import functools
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyglove as pg

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.search import tables
from benchmarks.search.ours import space, values_of
from benchmarks.search.problems import Problem
from paxtune.algorithms import Observation, Portfolio, SuggestionContext
from paxtune.search_space.decisions import Decisions

ROOT = Path(__file__).parents[1]
CONDITIONS = ('one', 'negated', 'mirrored', 'shuffled')
BUDGETS = (5, 10, 25, 50)
FLOOR = 0.01

Trials = Sequence[tuple[Decisions, float]]
"""Completed trials: decisions and scores."""


def search(
    problem: Problem, seed: int, count: int, earlier: Sequence[Observation]
) -> tuple[list[float], list[Observation]]:
    """Runs a search; returns its regret after each trial, and its trials."""
    spec, instance = pg.dna_spec(space(problem)), problem.instance(seed)
    objective, found = instance.start(), list[Observation]()
    memo: dict[str, object] = {}
    best, regrets = instance.median, list[float]()
    for number in range(1, count + 1):
        seen = functools.partial(list[Observation], (*earlier, *found))
        context = SuggestionContext(spec, seed, number, seen, memo=memo)
        decisions = Portfolio().suggest(context).decisions
        value = objective(values_of(problem, decisions))
        if value is None:
            found.append(Observation(number, decisions, 'infeasible'))
        else:
            found.append(Observation(number, decisions, 'completed', (-value,)))
            best = min(best, value)
        regrets.append((best - instance.best) / (instance.median - instance.best))
    return regrets, found


def misled(
    kind: str, studies: Sequence[Trials], ends: Mapping[str, tuple[float, float]], seed: int
) -> Iterator[Trials]:
    """Makes misleading studies of right ones."""
    rng = np.random.default_rng(seed)
    for study in studies:
        scores = [score for _, score in study]
        if kind == 'negated':
            yield [(decisions, -score) for decisions, score in study]
        elif kind == 'shuffled':
            mixed = rng.permutation(scores)
            yield [(decisions, float(s)) for (decisions, _), s in zip(study, mixed, strict=True)]
        else:
            yield [
                ({id_: ends[id_][0] * ends[id_][1] / x for id_, x in decisions.items()}, score)
                for decisions, score in study
            ]


def moved(study: Trials, ends: Mapping[str, tuple[float, float]]) -> Trials:
    """Moves the numbers of trials into the ranges of another table."""
    return [
        ({id_: min(max(x, ends[id_][0]), ends[id_][1]) for id_, x in decisions.items()}, score)
        for decisions, score in study
    ]


def observed(studies: Sequence[Trials]) -> list[Observation]:
    """The trials of earlier studies, as an algorithm sees them."""
    first = 1 - sum(map(len, studies))
    ids = itertools.count(first)
    return [
        Observation(next(ids), decisions, 'completed', (score,), source=f'study {i}')
        for i, study in enumerate(studies)
        for decisions, score in study
    ]


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--seeds', type=int, default=4)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--data_dir', type=Path, default=ROOT.parent / 'shared' / 'data')
    args = flags.parse_args()
    problems = tables.problems(args.data_dir.resolve())
    if len(problems) < 2:
        sys.exit(f'there are no tables in {args.data_dir / "taskset"}')
    count, length = (12, 12) if args.quick else (50, 50)
    problems, seeds = (problems[:2], 1) if args.quick else (problems, args.seeds)
    known: dict[tuple[str, int], Trials] = {}
    logs: dict[str, list[list[float]]] = {kind: [] for kind in ('none', *CONDITIONS)}
    for seed, (place, problem) in itertools.product(range(seeds), enumerate(problems)):
        ends = {
            each.id.path: (each.min_value, each.max_value)
            for each in pg.dna_spec(space(problem)).elements
        }
        others = [each for i, each in enumerate(problems) if i != place]
        studies = []
        for other in [others[(seed + i) % len(others)] for i in range(3)]:
            key = other.name, 1000 + seed % 2
            if key not in known:
                ended = (each for each in search(other, key[1], length, [])[1] if each.scores)
                known[key] = [(dict(each.decisions), each.scores[0]) for each in ended]
            studies.append(moved(known[key], ends))
        for kind in logs:
            given = [studies[0]] if kind == 'one' else studies
            if kind not in ('none', 'one'):
                given = list(misled(kind, studies, ends, seed))
            regrets, _ = search(problem, seed, count, [] if kind == 'none' else observed(given))
            logs[kind].append([math.log(max(each, FLOOR)) for each in regrets])
    result = {}
    for kind in CONDITIONS:
        ratios = np.array(logs[kind]) - np.array(logs['none'])
        for at in (each for each in BUDGETS if each <= count):
            mean, error = ratios[:, at - 1].mean(), ratios[:, at - 1].std() / len(ratios) ** 0.5
            print(
                f'{kind:9} {at:3} trials  {math.exp(mean):.2f}, times or by '
                f'{math.exp(1.96 * error):.2f}, {len(ratios)} runs'
            )
            result[f'{kind}_{at}'] = round(math.exp(mean), 3)
    print('RESULT ' + json.dumps(result))
    return 0


if __name__ == '__main__':
    sys.exit(main())
