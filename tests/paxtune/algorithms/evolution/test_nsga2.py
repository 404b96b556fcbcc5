import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import (
    NSGA2,
    Algorithm,
    AnyMutation,
    ChangeOneDecision,
    LayerRangeCrossover,
    Observation,
    RandomSearch,
    SwapLayers,
)
from paxtune.algorithms.ranking import survivors
from paxtune.objectives.pareto import front
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import (
    LAYER_SPACES,
    ask,
    check_algorithm,
    conditional,
    run,
    searched,
)


@pytest.mark.parametrize(
    'algorithm',
    [
        NSGA2(),
        NSGA2(population_size=3),
        NSGA2(2, crossover_rate=0.0, mutation=ChangeOneDecision()),
    ],
)
@pytest.mark.fast(1)
def test_conforms(algorithm):
    check_algorithm(algorithm)


@pytest.mark.slow
def test_conforms_with_layers():
    algorithm = NSGA2(2, mutation=AnyMutation(), crossover=LayerRangeCrossover())
    check_algorithm(algorithm, LAYER_SPACES)


def _trials(scores: Sequence[tuple[float, ...]]) -> list[Observation]:
    return [Observation(i, {}, 'completed', each) for i, each in enumerate(scores, 1)]


def test_survivors_are_ordered_by_front_and_crowding():
    scores = [(0, 0), (5, 5), (1, 9), (9, 1), (4, 6), (6, 4), (4, 4), (0, 9)]
    kept, fitness = survivors(_trials([tuple(map(float, each)) for each in scores]), 4)
    # (1, 9), (9, 1), (4, 6), (6, 4) and (5, 5) are the front; (5, 5) is the most crowded.
    assert {trial.id for trial in kept} == {3, 4, 5, 6}
    assert {rank for rank, _ in fitness} == {0}


def test_survivors_of_one_reward_are_the_best():
    scores = [(float(17 * i % 101),) for i in range(100)]
    kept, _ = survivors(_trials(scores), 5)
    assert sorted(trial.scores[0] for trial in kept) == sorted(each for (each,) in scores)[-5:]


def test_first_trials_are_quasi_random_until_the_population_has_completed():
    spec = pg.dna_spec(conditional())
    algorithm = NSGA2(population_size=3)
    drawn = run(algorithm, spec, 5, infeasible=0.0)
    drawn[1] = dataclasses.replace(drawn[1], state='infeasible', scores=())
    drawn[3] = dataclasses.replace(drawn[3], state='pending', scores=())
    assert [ask(algorithm, spec, drawn[:n]).parent is None for n in range(6)] == [True] * 5 + [
        False
    ]


def test_children_cross_two_parents_and_mutate_about_one_decision():
    spec = pg.dna_spec(pg.Dict({f'x{i}': pg.oneof(list(range(8))) for i in range(10)}))
    parents = [
        Observation(1, {f'x{i}': 0 for i in range(10)}, 'completed', (1.0, 0.0)),
        Observation(2, {f'x{i}': 1 for i in range(10)}, 'completed', (0.0, 1.0)),
    ]
    children = [ask(NSGA2(2), spec, parents, seed).decisions for seed in range(80)]
    mutated = [sum(value > 1 for value in child.values()) for child in children]
    assert 0.5 < sum(mutated) / len(mutated) < 1.5
    assert sum({0, 1} <= set(child.values()) for child in children) > 25


def test_trials_of_earlier_studies_are_anonymous_parents():
    spec = pg.dna_spec(conditional())
    drawn = run(RandomSearch(), spec, 4, infeasible=0.0)
    earlier = [dataclasses.replace(trial, id=trial.id - 4) for trial in drawn]
    known = {value for trial in earlier for value in trial.decisions.values()}
    for seed in range(5):
        suggestion = ask(NSGA2(4), spec, earlier, seed)
        assert suggestion.parent is None
        assert known & set(suggestion.decisions.values())


def _shortfall(algorithm: Algorithm, seed: int) -> float:
    """Distance of the front of 80 trials from the best one, where x1 … x5 are 0."""
    spec = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(6)}))

    def scores(decisions: Decisions) -> tuple[float, float]:
        first, *others = decisions.values()
        return first - sum(others), 1.0 - first - sum(others)

    history = searched(algorithm, spec, scores, 80, seed)
    best = front([trial.scores for trial in history])
    shortfalls = [1.0 - sum(history[index].scores) for index in best]
    return sum(shortfalls) / len(best)


def test_the_front_of_two_objectives_beats_random_search():
    for seed in range(2):
        ours, random = (_shortfall(algorithm, seed) for algorithm in (NSGA2(10), RandomSearch()))
        assert ours < 0.75 * random


def test_layers_move_along_the_front():
    spec = pg.dna_spec(pg.Dict(layers=[pg.oneof(list(range(9))) for _ in range(8)]))
    parents = [
        Observation(1, {f'layers[{i}]': i for i in range(8)}, 'completed', (1.0, 0.0)),
        Observation(2, {f'layers[{i}]': 8 for i in range(8)}, 'completed', (0.0, 1.0)),
    ]
    algorithm = NSGA2(2, mutation=SwapLayers(), crossover=LayerRangeCrossover())
    children = [list(ask(algorithm, spec, parents, seed).decisions.values()) for seed in range(60)]
    # No layer is drawn: each layer but 8 occurs once.
    for child in children:
        kept = [layer for layer in child if layer != 8]
        assert len(set(kept)) == len(kept)
    assert any(0 < child.count(8) < 8 for child in children)
    assert any(kept != sorted(kept) for child in children if (kept := [c for c in child if c < 8]))


def test_survivors_are_the_same_with_the_passes_of_the_call_before() -> None:
    rng = random.Random(0)
    trials = _trials([(rng.random(), rng.random()) for _ in range(200)])
    memo: dict[str, Any] = {}
    for count in (90, 95, 140, 200):
        assert survivors(trials[:count], 4, memo) == survivors(trials[:count], 4)
    late = [*trials[:20], *trials[21:]]  # Trial 21 had not ended then.
    assert survivors(late, 4, memo) == survivors(late, 4)
