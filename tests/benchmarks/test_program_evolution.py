"""The problems of `benchmarks/program_evolution.py`."""

import functools
import itertools
import random

import pyglove as pg
import pytest

from benchmarks import program_evolution
from benchmarks.program_evolution import ALL, LAYERS, distance, highest, program_of, reached
from paxtune.algorithms.encoding.sampling import draw
from paxtune.search_space.decisions import to_dna


def _edits(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> float:
    """The edit distance as it is defined: the cheapest of all ways to begin."""

    @functools.cache
    def rest(i: int, j: int) -> float:
        if i == len(one) or j == len(other):
            return len(one) - i + len(other) - j
        same, alike = one[i] == other[j], one[i][0] == other[j][0]
        return min(
            rest(i + 1, j) + 1,
            rest(i, j + 1) + 1,
            rest(i + 1, j + 1) + (0 if same else 0.5 if alike else 1),
        )

    return rest(0, 0)


def test_distances_are_those_of_the_cheapest_edits():
    rng = random.Random(0)
    kept = [layer for layer in ALL if layer is not None]
    for _ in range(50):
        one, other = (tuple(rng.choices(kept[:5], k=rng.randrange(6))) for _ in range(2))
        assert distance(one, other) == _edits(one, other)


def test_the_best_program_is_the_best_of_all():
    rng = random.Random(0)
    worth = {layer: rng.gauss(0, 1) for layer in ALL}
    kinds = [None, 0, 1, 2, 3]
    beside = {pair: rng.gauss(0, 1) for pair in itertools.product(kinds, kinds)}

    def total(program):
        kind = [layer and layer[0] for layer in program]
        return sum(map(worth.__getitem__, program)) + beside[kind[0], kind[1]] + beside[*kind[1:]]

    best = max(map(total, itertools.product(ALL, repeat=3)))
    assert highest(worth, beside, num_layers=3) == pytest.approx(best)


def test_decisions_are_programs_and_scores_lie_between_0_and_1():
    spec = pg.dna_spec(program_evolution.space())
    rng = random.Random(0)
    for name, make in program_evolution.PROBLEMS.items():
        score = make(random.Random(0))
        for _ in range(5):
            decisions = draw(spec, rng)
            program = program_of(decisions)
            assert len(program) == LAYERS
            assert len(decisions) == LAYERS + sum(layer is not None for layer in program)
            to_dna(spec, decisions)
            low = -5.0 if name == 'neighbours' else 0.0
            assert all(low <= each <= 1.0 for each in score(program))


def test_places_counts_what_belongs_elsewhere_half():
    hidden = list(ALL[:LAYERS])
    score = program_evolution.in_places(hidden)
    assert score(hidden) == (1.0,)
    assert score(hidden[1:] + hidden[:1]) == (0.5,)
    assert score([ALL[-1]] * LAYERS) == (0.0,)


def test_two_goals_are_compared_by_the_hypervolume():
    assert reached([(0.25,), (0.5,), (0.1,)]) == 0.5
    points = [(0.5, 0.5), (0.25, 1.0), (0.1, 0.1), (0.5, 0.5)]
    rng = random.Random(0)
    hits = 0
    for _ in range(20_000):
        x, y = rng.random(), rng.random()
        hits += any(x < a and y < b for a, b in points)
    assert reached(points) == pytest.approx(hits / 20_000, abs=0.02)
