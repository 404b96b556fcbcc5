import dataclasses
from collections import Counter

import pyglove as pg
import pytest

from paxtune.algorithms import (
    AnyMutation,
    Exhausted,
    InsertLayer,
    LayerRangeCrossover,
    Observation,
    RandomSearch,
    RegularizedEvolution,
    SwapLayers,
    UniformCrossover,
)
from paxtune.algorithms.quasi_random import QuasiRandom
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import (
    LAYER_SPACES,
    ask,
    check_algorithm,
    conditional,
    layer_stack,
    run,
    searched,
)
from tests.factories.spaces import changed_points


@pytest.mark.parametrize(
    'algorithm',
    [
        RegularizedEvolution(),
        RegularizedEvolution(population_size=3, tournament_size=2, first='quasi_random'),
        RegularizedEvolution(population_size=1, tournament_size=1),
        RegularizedEvolution(2, 1, mutation=AnyMutation()),
        RegularizedEvolution(2, 1, crossover=UniformCrossover(), crossover_rate=1.0),
    ],
)
@pytest.mark.fast(1)
def test_conforms(algorithm):
    check_algorithm(algorithm)


@pytest.mark.parametrize(
    'algorithm',
    [
        RegularizedEvolution(2, 1, mutation=InsertLayer()),
        RegularizedEvolution(3, 2, mutation=AnyMutation(), crossover=LayerRangeCrossover()),
    ],
)
@pytest.mark.fast(1)
def test_conforms_with_layers(algorithm):
    check_algorithm(algorithm, LAYER_SPACES)


def test_first_trials_may_be_quasi_random() -> None:
    algorithm = RegularizedEvolution(population_size=4, tournament_size=1, first='quasi_random')
    spec = pg.dna_spec(conditional())
    history: list[Observation] = []
    for number in range(1, 7):
        suggestion = ask(algorithm, spec, history)
        spread = ask(QuasiRandom(), spec, history)
        assert (suggestion.decisions == spread.decisions) == (number <= 4)
        assert (suggestion.parent is not None) == (number > 4)
        history.append(Observation(number, suggestion.decisions, 'completed', (float(number),)))


@pytest.mark.pax('Regularized evolution with')
def test_children_mutate_the_winner_of_a_tournament():
    spec = pg.dna_spec(conditional())
    algorithm = RegularizedEvolution(population_size=4, tournament_size=4)
    history = run(RandomSearch(), spec, 6, infeasible=0.0)
    # The best of all is too old, the best of the youngest four is trial 5.
    scores = {1: 9.0, 2: 8.0, 3: 1.0, 4: 2.0, 5: 3.0, 6: 0.0}
    history = [Observation(t.id, t.decisions, 'completed', (scores[t.id],)) for t in history]
    suggestion = ask(algorithm, spec, history)
    assert suggestion.parent == 5
    assert len(changed_points(spec, history[4].decisions, suggestion.decisions)) == 1


def test_first_trials_are_random_and_infeasible_ones_do_not_count():
    spec = pg.dna_spec(conditional())
    algorithm = RegularizedEvolution(population_size=3, tournament_size=1)
    drawn = run(RandomSearch(), spec, 6, infeasible=0.0)
    history = [
        Observation(trial.id, trial.decisions, 'infeasible') if trial.id in (2, 4) else trial
        for trial in drawn
    ]
    assert [ask(algorithm, spec, history[:n]).parent is None for n in range(7)] == [
        True,
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    parents = {ask(algorithm, spec, history, seed).parent for seed in range(40)}
    assert parents == {3, 5, 6}


def test_ties_go_to_the_oldest_trial():
    spec = pg.dna_spec(conditional())
    history = run(RandomSearch(), spec, 5, infeasible=0.0)
    history = [Observation(t.id, t.decisions, 'completed', (1.0,)) for t in history]
    algorithm = RegularizedEvolution(population_size=5, tournament_size=5)
    assert ask(algorithm, spec, history).parent == 1


def test_several_rewards_compare_front_then_crowding_then_age():
    spec = pg.dna_spec(conditional())
    drawn = run(RandomSearch(), spec, 6, infeasible=0.0)

    def parent(scores: list[tuple[float, float]]) -> int | None:
        history = [
            dataclasses.replace(trial, scores=each)
            for trial, each in zip(drawn, scores, strict=True)
        ]
        size = len(history)
        algorithm = RegularizedEvolution(population_size=size, tournament_size=size)
        return ask(algorithm, spec, history).parent

    # Only the fourth is undominated; the first has the best sum of the others.
    assert parent([(3, 9), (1, 1), (9, 3), (9, 9), (2, 2), (0, 0)]) == 4
    # All on one front: the ends are least crowded, and the older one wins.
    assert parent([(2, 8), (3, 7), (9, 1), (8, 2), (1, 9), (7, 3)]) == 3
    # Equal scores: the older one.
    assert parent([(0, 0), (0, 0), (5, 5), (0, 0), (5, 5), (0, 0)]) == 3


def test_several_rewards_spread_along_the_front():
    bits = pg.dna_spec(pg.Dict({f'x{i}': pg.oneof([0, 1]) for i in range(10)}))
    algorithm = RegularizedEvolution(population_size=8, tournament_size=4)

    # Every trial is on the front of two opposite objectives; x0 alone increases the third.
    def scores(decisions: Decisions) -> tuple[float, float]:
        ones = float(sum(decisions.values()))
        return ones + 9 * decisions['x0'], -ones + 9 * decisions['x0']

    history = searched(algorithm, bits, scores, 80)
    assert sum(trial.decisions['x0'] for trial in history[-20:]) >= 15
    assert len({sum(trial.decisions.values()) for trial in history[-20:]}) >= 4


def test_trials_of_earlier_studies_are_anonymous_parents():
    spec = pg.dna_spec(conditional())
    algorithm = RegularizedEvolution(population_size=3, tournament_size=3)
    drawn = run(RandomSearch(), spec, 3, infeasible=0.0)
    history = [
        Observation(trial.id - 3, trial.decisions, 'completed', (float(-trial.id),))
        for trial in drawn
    ]
    suggestion = ask(algorithm, spec, history)
    assert suggestion.parent is None
    assert len(changed_points(spec, drawn[0].decisions, suggestion.decisions)) == 1


def test_a_space_of_one_experiment_is_exhausted():
    spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a'])))
    algorithm = RegularizedEvolution(population_size=1, tournament_size=1)
    with pytest.raises(Exhausted):
        ask(algorithm, spec, [Observation(1, {'x': 0}, 'completed', (1.0,))])


def test_the_given_mutation_is_used():
    spec = pg.dna_spec(layer_stack())
    history = run(RandomSearch(), spec, 1, infeasible=0.0)
    algorithm = RegularizedEvolution(1, 1, mutation=SwapLayers())
    parent = history[0].decisions
    for seed in range(10):
        child = ask(algorithm, spec, history, seed)
        assert child.parent == 1
        assert child.decisions != parent
        assert sorted(child.decisions.values()) == sorted(parent.values())


def test_crossover_takes_the_winners_of_two_tournaments():
    spec = pg.dna_spec(pg.Dict({f'x{i}': pg.oneof([1, 2, 3]) for i in range(8)}))
    history = [
        Observation(number, {f'x{i}': number - 1 for i in range(8)}, 'completed', (0.0,))
        for number in (1, 2)
    ]

    def mixed(rate: float) -> int:
        algorithm = RegularizedEvolution(2, 1, crossover=UniformCrossover(), crossover_rate=rate)
        children = [ask(algorithm, spec, history, seed) for seed in range(40)]
        assert {child.parent for child in children} == {1, 2}
        counts = [Counter(child.decisions.values()).most_common() for child in children]
        return sum(count[0][1] < 7 for count in counts)  # One of eight is the mutation.

    assert mixed(0.0) == 0
    assert 8 < mixed(1.0) < 32  # Half of the time, both tournaments have the same winner.
