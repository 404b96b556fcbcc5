"""Programs that evolution finds by mutations and a crossover that know layers.

    python benchmarks/program_evolution.py

A program is a list of 8 layers. A layer is one of four kinds with one of three widths, or none, so
there are 13^8 programs. Problems, each drawn anew for each seed:

- alignment: 1 - d / 8, where d is the edit distance to a hidden sequence of 6 layers, of the layers
  that are not none. Another width of the same kind counts half. Inserting and deleting helps.
- neighbours: layers have a worth each, and so have kinds that follow each other. 0 is the median of
  random programs, 1 the best there is.
- places: a hidden program; a layer in its place counts 1/8, one that belongs elsewhere 1/16, as in
  Mastermind. Swapping helps.
- alignment at a cost: the first problem, and the sum of widths is to be low, both from 0 to 1. The
  hypervolume of the front counts.

Methods: `RegularizedEvolution(20, 5)`, and `NSGA2` where there are two goals: as by default
(one_change), with `AnyMutation()` (layers), with `LayerRangeCrossover()` (ranges) or with both.
Random search beside them. By default, evolution has no crossover, NSGA2 a uniform one.

The table has means of the best so far over seeds with 95 % intervals (1.96 standard errors), and
medians. Ratios are to `one_change`: above 1 is better; of intervals seeds are drawn again, the
same ones for both.

`--seeds=20 --trials=120` are the defaults; `--quick` has 4 seeds and 60 trials.
"""

import argparse
import dataclasses
import itertools
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyglove as pg

sys.path.insert(0, str(Path(__file__).parents[1]))

from paxtune.algorithms import (
    NSGA2,
    Algorithm,
    AnyMutation,
    LayerRangeCrossover,
    Observation,
    RandomSearch,
    RegularizedEvolution,
    SuggestionContext,
)
from paxtune.objectives.pareto import front
from paxtune.search_space.decisions import Decisions

LAYERS = 8
KINDS = 4
WIDTHS = 3
HIDDEN = 6

Layer: TypeAlias = tuple[int, int] | None
"""Kind and width; None for no layer."""

ALL: Sequence[Layer] = [None, *((kind, width) for kind in range(KINDS) for width in range(WIDTHS))]

Score: TypeAlias = Callable[[Sequence[Layer]], tuple[float, ...]]


def space() -> pg.Dict:
    """The programs."""

    def layer() -> pg.hyper.Choices:
        kinds = [pg.Dict(kind=kind, width=pg.oneof(list(range(WIDTHS)))) for kind in range(KINDS)]
        return pg.oneof([*kinds, 'none'])

    return pg.Dict(layers=[layer() for _ in range(LAYERS)])


def program_of(decisions: Decisions) -> list[Layer]:
    """The layers that decisions make.

    Example:
        >>> program_of({'layers[0]': 4, 'layers[1]': 2, 'layers[1][=2/5].width': 1})[:2]
        [None, (2, 1)]
    """
    found: list[Layer] = []
    for place in range(LAYERS):
        kind = int(decisions.get(f'layers[{place}]', KINDS))
        width = decisions.get(f'layers[{place}][={kind}/{KINDS + 1}].width')
        found.append(None if width is None else (kind, int(width)))
    return found


def distance(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> float:
    """The edit distance of two sequences of layers; another width of a kind counts half."""
    row = [float(n) for n in range(len(other) + 1)]
    for i, mine in enumerate(one, 1):
        before, row = row, [float(i)]
        for j, theirs in enumerate(other, 1):
            change = 0.0 if mine == theirs else 0.5 if mine[0] == theirs[0] else 1.0
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + change))
    return row[-1]


def alignment(rng: random.Random) -> Score:
    hidden = [each for each in rng.choices(ALL[1:], k=HIDDEN) if each is not None]

    def score(program: Sequence[Layer]) -> tuple[float]:
        return (1.0 - distance([each for each in program if each], hidden) / LAYERS,)

    return score


def alignment_at_a_cost(rng: random.Random) -> Score:
    quality = alignment(rng)

    def score(program: Sequence[Layer]) -> tuple[float, float]:
        cost = sum(layer[1] + 1 for layer in program if layer) / (LAYERS * WIDTHS)
        return quality(program)[0], 1.0 - cost

    return score


def neighbours(rng: random.Random) -> Score:
    worth = {layer: rng.gauss(0.0, 1.0) for layer in ALL}
    kinds = [None, *range(KINDS)]
    beside = {(one, other): rng.gauss(0.0, 1.0) for one in kinds for other in kinds}

    def total(program: Sequence[Layer]) -> float:
        pairs = itertools.pairwise(program)
        return sum(worth[each] for each in program) + sum(
            beside[_kind(one), _kind(other)] for one, other in pairs
        )

    best = highest(worth, beside)
    middle = float(np.median([total(rng.choices(ALL, k=LAYERS)) for _ in range(500)]))
    return lambda program: ((total(program) - middle) / (best - middle),)


def _kind(layer: Layer) -> int | None:
    return None if layer is None else layer[0]


def highest(
    worth: Mapping[Layer, float],
    beside: Mapping[tuple[int | None, int | None], float],
    num_layers: int = LAYERS,
) -> float:
    """Worth of the best of all programs, by dynamic programming from place to place."""
    ends = dict(worth)
    for _ in range(num_layers - 1):
        ends = {
            last: own + max(ends[other] + beside[_kind(other), _kind(last)] for other in ends)
            for last, own in worth.items()
        }
    return max(ends.values())


def places(rng: random.Random) -> Score:
    return in_places(rng.sample(ALL, LAYERS))


def in_places(hidden: Sequence[Layer]) -> Score:
    """Scores a program by the layers of a hidden one; a misplaced layer counts half."""

    def score(program: Sequence[Layer]) -> tuple[float]:
        right = sum(one == other for one, other in zip(program, hidden, strict=True))
        there = (Counter(program) & Counter(hidden)).total()
        return ((right + there) / (2 * LAYERS),)

    return score


PROBLEMS: Mapping[str, Callable[[random.Random], Score]] = {
    'alignment': alignment,
    'neighbours': neighbours,
    'places': places,
    'alignment_at_a_cost': alignment_at_a_cost,
}


@dataclasses.dataclass(frozen=True)
class Method:
    """An algorithm for one goal, and one for two."""

    one: Algorithm
    two: Algorithm


def _evolution(**fields: object) -> Method:
    return Method(RegularizedEvolution(20, 5, **fields), NSGA2(**fields))


BASE = 'one_change'
METHODS: Mapping[str, Method] = {
    'random': Method(RandomSearch(), RandomSearch()),
    BASE: _evolution(),
    'layers': _evolution(mutation=AnyMutation()),
    'ranges': _evolution(crossover=LayerRangeCrossover()),
    'layers_and_ranges': _evolution(mutation=AnyMutation(), crossover=LayerRangeCrossover()),
}


def reached(points: Sequence[tuple[float, ...]]) -> float:
    """The best score; of two, the hypervolume above (0, 0).

    Example:
        >>> reached([(0.5, 0.5), (0.25, 1.0), (0.1, 0.1)])
        0.375
    """
    if len(points[0]) == 1:
        return max(points)[0]
    volume, height = 0.0, 0.0
    for x, y in sorted({points[index] for index in front(points)}, reverse=True):
        volume += x * (y - height)
        height = y
    return volume


def run(
    algorithm: Algorithm, spec: pg.DNASpec, score: Score, seed: int, budgets: Sequence[int]
) -> list[float]:
    """The best score after each number of trials."""
    history: list[Observation] = []
    for number in range(1, max(budgets) + 1):
        context = SuggestionContext(spec, seed, number, lambda: list(history))
        suggestion = algorithm.suggest(context)
        scores = score(program_of(suggestion.decisions))
        history.append(
            Observation(
                number, suggestion.decisions, 'completed', scores, suggestion.algorithm_state
            )
        )
    points = [trial.scores for trial in history]
    return [reached(points[:count]) for count in budgets]


def on_problem(
    problem: str, spec: pg.DNASpec, seeds: int, budgets: Sequence[int]
) -> dict[str, np.ndarray]:
    """By method: what was reached with each seed and budget, [seeds, budgets]."""
    found: dict[str, list[list[float]]] = {name: [] for name in METHODS}
    for seed in range(seeds):
        score = PROBLEMS[problem](random.Random(f'{problem}/{seed}'))
        has_two = len(score([None] * LAYERS)) > 1
        for name, method in METHODS.items():
            algorithm = method.two if has_two else method.one
            found[name].append(run(algorithm, spec, score, seed, budgets))
    return {name: np.array(rows) for name, rows in found.items()}


def ratio(ours: np.ndarray, base: np.ndarray) -> tuple[float, float, float]:
    """The ratio of means over seeds, and its interval."""
    drawn = np.random.default_rng(0).integers(len(ours), size=(2000, len(ours)))
    low, high = np.quantile(ours[drawn].mean(1) / base[drawn].mean(1), [0.025, 0.975])
    return float(ours.mean() / base.mean()), float(low), float(high)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--seeds', type=int, default=20)
    flags.add_argument('--trials', type=int, default=120)
    args = flags.parse_args()
    seeds, trials = (4, 60) if args.quick else (args.seeds, args.trials)
    budgets = [trials // 2, trials]
    spec = pg.dna_spec(space())
    result: dict[str, float] = {}
    print(f'{"":42}' + ''.join(f'{f"after {count}":>24}' for count in budgets) + '   ratio')
    for problem in PROBLEMS:
        found = on_problem(problem, spec, seeds, budgets)
        for name, values in found.items():
            value, low, high = ratio(values[:, -1], found[BASE][:, -1])
            result[f'{name}_{problem}'] = value
            columns = ''.join(f'{_rendered(each):>24}' for each in values.T)
            compared = f'{value:.3f} ({low:.3f}–{high:.3f})'
            print(f'{problem:22}{name:20}{columns}   {compared}', flush=True)
    for name in METHODS:
        ratios = [result[f'{name}_{problem}'] for problem in PROBLEMS]
        result[name] = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f'{name:20} geometric mean of ratios {result[name]:.3f}')
    ours = {name: round(value, 4) for name, value in result.items() if not name.startswith(BASE)}
    print('RESULT ' + json.dumps(ours))
    return 0


def _rendered(values: np.ndarray) -> str:
    """Mean, interval and median."""
    error = 1.96 * values.std(ddof=1) / math.sqrt(len(values))
    return f'{values.mean():.3f} ± {error:.3f}, {np.median(values):.3f}'


if __name__ == '__main__':
    sys.exit(main())
