import dataclasses
import math
import random
from collections import Counter
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms import (
    AnyMutation,
    ChangeOneDecision,
    Exhausted,
    InsertLayer,
    LayerRangeCrossover,
    Observation,
    RandomSearch,
    RegularizedEvolution,
    SuggestionContext,
    SwapLayers,
    UniformCrossover,
)
from paxtune.algorithms.encoding.sampling import draw, mutate
from paxtune.algorithms.encoding.scaling import from_unit, to_unit
from paxtune.algorithms.quasi_random import QuasiRandom
from paxtune.search_space.decisions import Decisions, active_decision_points, slot_ids, to_dna
from tests.conformance.algorithm_suite import (
    PROGRAMS,
    ask,
    check_algorithm,
    conditional,
    past,
    program,
    run,
)
from tests.paxtune.spaces import values
from tests.properties import examples
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv


@pytest.mark.parametrize(
    'algorithm',
    [
        RandomSearch(),
        RegularizedEvolution(),
        RegularizedEvolution(population_size=3, tournament_size=2, first='quasi_random'),
        RegularizedEvolution(population_size=1, tournament_size=1),
        RegularizedEvolution(2, 1, mutation=AnyMutation()),
        RegularizedEvolution(2, 1, crossover=UniformCrossover(), crossover_rate=1.0),
    ],
)
@pytest.mark.fast(2)
def test_algorithms_conform(algorithm):
    check_algorithm(algorithm)


@pytest.mark.parametrize(
    'algorithm',
    [
        RegularizedEvolution(2, 1, mutation=InsertLayer()),
        RegularizedEvolution(3, 2, mutation=AnyMutation(), crossover=LayerRangeCrossover()),
    ],
)
@pytest.mark.fast(1)
def test_algorithms_that_change_layers_alone_conform(algorithm):
    check_algorithm(algorithm, PROGRAMS)


def _draws(decision: Any, count: int = 2000) -> list[Any]:
    spec = pg.dna_spec(pg.Dict(x=decision))
    rng = random.Random(0)
    return [tuple(draw(spec, rng).values()) for _ in range(count)]


@pytest.mark.parametrize(
    ('scale', 'median'),
    [(None, 0.50005), ('linear', 0.50005), ('log', 0.01), ('rlog', 1.0001 - 0.01)],
)
def test_numbers_are_drawn_on_their_scale(scale, median):
    drawn = [number for (number,) in _draws(pg.floatv(1e-4, 1.0, scale))]
    below = sum(number < median for number in drawn) / len(drawn)
    assert abs(below - 0.5) < 0.04
    assert min(drawn) >= 1e-4
    assert max(drawn) <= 1.0


def test_reverse_log_draws_densely_at_the_top():
    drawn = [number for (number,) in _draws(pg.floatv(1e-4, 1.0, 'rlog'))]
    # The share of a decade: log10(1 / 0.1) of four.
    assert abs(sum(number > 0.9 for number in drawn) / len(drawn) - 0.75) < 0.04


@pytest.mark.parametrize(
    ('decision', 'outcomes'),
    [
        (pg.oneof([1, 2, 3]), 3),
        (pg.permutate([1, 2, 3]), 6),
        (pg.manyof(2, [1, 2, 3]), 6),
        (pg.manyof(2, [1, 2, 3], sorted=True), 3),
        (pg.manyof(2, [1, 2, 3], distinct=False), 9),
    ],
)
def test_choices_are_drawn_uniformly(decision, outcomes):
    counts = Counter(_draws(decision))
    assert len(counts) == outcomes
    expected = 2000 / outcomes
    assert all(abs(count - expected) < 5 * math.sqrt(expected) for count in counts.values())


@pytest.mark.parametrize('scale', [None, 'linear', 'log', 'rlog'])
@pytest.mark.parametrize('bounds', [(1, 8), (3, 4), (5, 12)])
def test_integers_are_drawn_on_their_scale_and_reach_both_bounds(scale, bounds):
    low, high = bounds
    shares = {}
    for number in range(low, high + 1):
        at = low + high - number if scale == 'rlog' else number
        shares[number] = math.log((at + 0.5) / (at - 0.5)) if scale in ('log', 'rlog') else 1.0
    counts = Counter(number for (number,) in _draws(intv(low, high, scale)))
    assert set(counts) == set(shares)
    assert {type(number) for number in counts} == {int}
    for number, share in shares.items():
        expected = 2000 * share / sum(shares.values())
        assert abs(counts[number] - expected) < 5 * math.sqrt(expected)


def test_integers_of_wide_ranges_stay_within_them():
    for scale in (None, 'log', 'rlog'):
        drawn = [number for (number,) in _draws(intv(1, 2**53, scale), 200)]
        assert 1 <= min(drawn) < max(drawn) <= 2**53


def test_repeated_sorted_choices_are_in_order():
    assert all(
        list(chosen) == sorted(chosen)
        for chosen in _draws(pg.manyof(3, [1, 2, 3], distinct=False, sorted=True), 100)
    )


def test_random_search_does_not_read_the_history_of_a_range():
    def read():
        raise AssertionError('read')

    spec = pg.dna_spec(pg.Dict(rate=pg.floatv(0.0, 1.0)))
    RandomSearch().suggest(SuggestionContext(spec, 0, 1, read))


def test_random_search_differs_by_seed_and_trial():
    spec = pg.dna_spec(pg.Dict(rate=pg.floatv(0.0, 1.0)))
    asked = [
        SuggestionContext(spec, seed, number, list) for seed in range(3) for number in range(1, 4)
    ]
    drawn = {RandomSearch().suggest(context).decisions['rate'] for context in asked}
    assert len(drawn) == 9


def test_random_search_finds_the_last_of_a_lopsided_space():
    # 'b' comes up once in 4096 draws for each of its place; the last one must still be found.
    value: Any = 'b'
    for _ in range(12):
        value = pg.oneof(['a', value])
    spec = pg.dna_spec(pg.Dict(x=value))
    trials = run(RandomSearch(), spec, 13)
    assert len({tuple(trial.decisions.items()) for trial in trials}) == 13
    with pytest.raises(Exhausted):
        ask(RandomSearch(), spec, trials)


def test_random_search_draws_what_it_always_drew():
    spec = pg.dna_spec(conditional())
    drawn = [list(trial.decisions.values()) for trial in run(RandomSearch(), spec, 5)]
    assert drawn == [
        pytest.approx(values)
        for values in (
            [2, 0.7517201921444497],
            [1, 2, 0, 1, 0.644489693623421],
            [2, 0.505268131483236],
            [2, 0.5066151315574526],
            [1, 0, 0, 1, 0.5886791421307622],
        )
    ]


def test_random_search_says_why_nothing_is_feasible():
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0)))

    def infeasible(decisions: Decisions) -> str:
        return 'x is large' if decisions['x'] > 0.2 else 'x is small'

    with pytest.raises(UserError) as error:
        ask(RandomSearch(), spec, [], infeasible=infeasible)
    lines = str(error.value).split('\n')
    assert lines[0].startswith('No feasible experiment was found: 2500 experiments of the search')
    assert [line.split(' times: ')[1] for line in lines[1:]] == ['x is large', 'x is small']


def test_random_search_gives_up_on_a_large_finite_space():
    spec = pg.dna_spec(pg.Dict(x=intv(1, 10**6), y=intv(1, 10**6)))
    with pytest.raises(UserError, match=r'2500 times: no$'):
        ask(RandomSearch(), spec, [], infeasible=lambda decisions: 'no')


def test_random_search_finds_the_one_feasible_experiment_of_a_small_space():
    spec = pg.dna_spec(pg.Dict(x=intv(1, 3000)))
    asked = Counter[int]()

    def infeasible(decisions: Decisions) -> str | None:
        asked[int(decisions['x'])] += 1
        return None if decisions['x'] == 2999 else 'no'

    assert ask(RandomSearch(), spec, [], infeasible=infeasible).decisions == {'x': 2999}
    assert max(asked.values()) == 1, 'nothing is asked twice'


def test_random_search_does_not_read_the_history_of_an_infeasible_range():
    def read():
        raise AssertionError('read')

    def infeasible(decisions: Decisions) -> str | None:
        return None if decisions['rate'] > 0.9 else 'low'

    spec = pg.dna_spec(pg.Dict(rate=pg.floatv(0.0, 1.0)))
    suggestion = RandomSearch().suggest(SuggestionContext(spec, 0, 1, read, infeasible))
    assert suggestion.decisions['rate'] > 0.9


@pytest.mark.parametrize(('number', 'seen'), [(-3, False), (0, False), (1, True)])
def test_trials_of_earlier_studies_were_not_seen(number, seen):
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0)))
    history = [Observation(number, {'x': 0.5}, 'completed', (1.0,))]
    assert SuggestionContext(spec, 0, 2, lambda: history).seen({'x': 0.5}) == seen


def test_random_search_does_not_repeat_the_finite_part_of_an_infinite_space():
    spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a', 'b', pg.floatv(0.0, 1.0)])))
    trials = run(RandomSearch(), spec, 30)
    assert len({tuple(trial.decisions.items()) for trial in trials}) == 30


def _changed(spec: pg.DNASpec, parent: Decisions, child: Decisions) -> list[str]:
    """The first ids of the decision points that differ and stand inside no other that does."""
    changed: list[tuple[str, ...]] = []
    for point in active_decision_points(spec, parent):
        names = slot_ids(point)
        if any(
            name.startswith(tuple(f'{id_}[=' for id_ in above))
            for above in changed
            for name in names
        ):
            continue
        if [parent[name] for name in names] != [child.get(name) for name in names]:
            changed.append(tuple(names))
    return [names[0] for names in changed]


@examples(40)
@given(values(), st.integers(0, 2**32))
def test_mutation_changes_exactly_one_decision(value, seed):
    spec = pg.dna_spec(value)
    rng = random.Random(seed)
    parent = draw(spec, rng)
    if not any(_can_change(point) for point in active_decision_points(spec, parent)):
        with pytest.raises(ValueError, match='no decision can change'):
            mutate(spec, parent, rng)
        return
    child = mutate(spec, parent, rng)
    to_dna(spec, child)
    assert len(_changed(spec, parent, child)) == 1
    assert list(child) == list(to_dna(spec, child).to_dict())


def _can_change(point: Any) -> bool:
    if isinstance(point, pg.geno.Float):
        return True
    combinations = pg.geno.Choices(
        point.num_choices,
        [pg.geno.Space() for _ in point.candidates],
        distinct=point.distinct,
        sorted=point.sorted,
    )
    return bool(combinations.space_size > 1)


def test_mutation_reaches_every_active_decision():
    spec = pg.dna_spec(conditional())
    parent: Decisions = {'layer': 0, 'layer[=0/3].heads': 1, 'layer[=0/3].rate': 0.5, 'scale': 0.7}
    rng = random.Random(0)
    counts = Counter(_changed(spec, parent, mutate(spec, parent, rng))[0] for _ in range(2000))
    assert set(counts) == set(parent)
    assert all(abs(count - 500) < 110 for count in counts.values())


def test_mutation_draws_what_a_new_choice_opens():
    spec = pg.dna_spec(conditional())
    parent: Decisions = {'layer': 2, 'scale': 0.7}
    children = [mutate(spec, parent, random.Random(seed)) for seed in range(60)]
    opened = [child for child in children if child['layer'] == 0]
    assert len({child['layer[=0/3].rate'] for child in opened}) == len(opened) > 5
    assert all(child['scale'] == 0.7 for child in opened)


def test_mutation_honours_the_scale():
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(1e-6, 1.0, 'log')))
    rng = random.Random(0)
    drawn = [mutate(spec, {'x': 0.5}, rng)['x'] for _ in range(500)]
    assert abs(sum(number < 1e-3 for number in drawn) / 500 - 0.5) < 0.08


def test_mutation_changes_an_integer_on_its_scale():
    spec = pg.dna_spec(pg.Dict(x=intv(1, 4095, 'log')))
    rng = random.Random(0)
    drawn = [mutate(spec, {'x': 64}, rng)['x'] for _ in range(500)]
    assert {type(number) for number in drawn} == {int}
    assert 64 not in drawn
    assert abs(sum(number < 64 for number in drawn) / 500 - 0.5) < 0.08
    narrow = pg.dna_spec(pg.Dict(x=intv(7, 8)))
    assert mutate(narrow, {'x': 7}, rng) == {'x': 8}
    assert mutate(narrow, {'x': 8}, rng) == {'x': 7}


@pytest.mark.parametrize('scale', ['log', 'rlog'])
def test_local_mutation_moves_a_step_on_the_scale(scale):
    point = pg.dna_spec(pg.Dict(x=pg.floatv(1e-4, 1.0, scale))).elements[0]
    rng = random.Random(0)
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(1e-4, 1.0, scale)))
    at = from_unit(point, 0.4)
    moves = [to_unit(point, mutate(spec, {'x': at}, rng, 0.1)['x']) - 0.4 for _ in range(400)]
    assert abs(sum(moves) / 400) < 0.02
    assert abs(math.sqrt(sum(move**2 for move in moves) / 400) - 0.1) < 0.02
    # From an end, inwards only.
    ends = [mutate(spec, {'x': 1.0}, rng, 0.1)['x'] for _ in range(50)]
    assert all(from_unit(point, 0.4) < end < 1.0 for end in ends)


def test_local_mutation_changes_a_whole_number_however_small_the_step():
    spec = pg.dna_spec(pg.Dict(x=intv(1, 3)))
    rng = random.Random(0)
    assert {mutate(spec, {'x': 2}, rng, 1e-6)['x'] for _ in range(20)} == {1, 3}
    assert mutate(spec, {'x': 3}, rng, 1e-6) == {'x': 2}


def test_mutated_permutation_swaps_two_and_keeps_what_is_inside():
    spec = pg.dna_spec(pg.Dict(x=pg.permutate([pg.Dict(y=pg.oneof([1, 2, 3])), 'b', 'c'])))
    parent: Decisions = {'x[0]': 0, 'x[0][=0/3].y': 2, 'x[1]': 1, 'x[2]': 2}
    found = set()
    for seed in range(80):
        child = mutate(spec, parent, random.Random(seed))
        order = tuple(child[f'x[{place}]'] for place in range(3))
        inside = child[f'x[{order.index(0)}][=0/3].y']
        assert (order == (0, 1, 2)) != (inside == 2)
        found.add(order)
    assert found == {(0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1)}


def test_mutated_sorted_choice_stays_sorted_and_moves_what_is_inside():
    open_ = [pg.Dict(y=pg.oneof(list(range(9)))) for _ in range(4)]
    spec = pg.dna_spec(pg.Dict(x=pg.manyof(2, open_, sorted=True)))
    parent: Decisions = {'x[0]': 1, 'x[0][=1/4].y': 7, 'x[1]': 2, 'x[1][=2/4].y': 8}
    for seed in range(80):
        child = mutate(spec, parent, random.Random(seed))
        to_dna(spec, child)
        chosen = [child['x[0]'], child['x[1]']]
        kept = {index: child[f'x[{place}][={index}/4].y'] for place, index in enumerate(chosen)}
        if chosen != [1, 2]:
            assert (kept.get(1) == 7) != (kept.get(2) == 8)


def test_evolution_may_begin_evenly_spread() -> None:
    algorithm = RegularizedEvolution(population_size=4, tournament_size=1, first='quasi_random')
    spec = pg.dna_spec(conditional())
    history: list[Observation] = []
    for number in range(1, 7):
        suggestion = ask(algorithm, spec, history)
        spread = ask(QuasiRandom(), spec, history)
        assert (suggestion.decisions == spread.decisions) == (number <= 4)
        assert (suggestion.parent is not None) == (number > 4)
        history.append(Observation(number, suggestion.decisions, 'completed', (float(number),)))


def test_evolution_mutates_the_winner_of_a_tournament():
    spec = pg.dna_spec(conditional())
    algorithm = RegularizedEvolution(population_size=4, tournament_size=4)
    history = run(RandomSearch(), spec, 6, infeasible=0.0)
    # The best of all is too old, the best of the youngest four is trial 5.
    scores = {1: 9.0, 2: 8.0, 3: 1.0, 4: 2.0, 5: 3.0, 6: 0.0}
    history = [Observation(t.id, t.decisions, 'completed', (scores[t.id],)) for t in history]
    suggestion = ask(algorithm, spec, history)
    assert suggestion.parent == 5
    assert len(_changed(spec, history[4].decisions, suggestion.decisions)) == 1


def test_evolution_begins_at_random_and_does_not_count_infeasible_trials():
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


def test_evolution_gives_ties_to_the_oldest():
    spec = pg.dna_spec(conditional())
    history = run(RandomSearch(), spec, 5, infeasible=0.0)
    history = [Observation(t.id, t.decisions, 'completed', (1.0,)) for t in history]
    algorithm = RegularizedEvolution(population_size=5, tournament_size=5)
    assert ask(algorithm, spec, history).parent == 1


def test_evolution_with_several_rewards_prefers_front_then_room_then_age():
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

    # Only the fourth is dominated by none; the first has the best sum of what is left.
    assert parent([(3, 9), (1, 1), (9, 3), (9, 9), (2, 2), (0, 0)]) == 4
    # All on one front: the ends have most room, and of the two the older one wins.
    assert parent([(2, 8), (3, 7), (9, 1), (8, 2), (1, 9), (7, 3)]) == 3
    # Two alike: the older one.
    assert parent([(0, 0), (0, 0), (5, 5), (0, 0), (5, 5), (0, 0)]) == 3


def test_evolution_with_several_rewards_spreads_along_the_front():
    bits = pg.dna_spec(pg.Dict({f'x{i}': pg.oneof([0, 1]) for i in range(10)}))
    algorithm = RegularizedEvolution(population_size=8, tournament_size=4)
    history: list[Observation] = []
    for number in range(1, 81):
        decisions = ask(algorithm, bits, history).decisions
        # Every trial is on the front of two opposite goals; a third one is gained by x0 alone.
        ones = float(sum(decisions.values()))
        scores = (ones + 9 * decisions['x0'], -ones + 9 * decisions['x0'])
        history.append(Observation(number, decisions, 'completed', scores))
    assert sum(trial.decisions['x0'] for trial in history[-20:]) >= 15
    assert len({sum(trial.decisions.values()) for trial in history[-20:]}) >= 4


def test_evolution_learns_from_earlier_studies_and_names_no_parent_there():
    spec = pg.dna_spec(conditional())
    algorithm = RegularizedEvolution(population_size=3, tournament_size=3)
    drawn = run(RandomSearch(), spec, 3, infeasible=0.0)
    history = [
        Observation(trial.id - 3, trial.decisions, 'completed', (float(-trial.id),))
        for trial in drawn
    ]
    suggestion = ask(algorithm, spec, history)
    assert suggestion.parent is None
    assert len(_changed(spec, drawn[0].decisions, suggestion.decisions)) == 1


def test_evolution_needs_a_reward():
    spec = pg.dna_spec(conditional())
    with pytest.raises(UserError, match='needs a reward'):
        RegularizedEvolution().check_space(spec, 0)
    RegularizedEvolution().check_space(spec, 2)


def test_evolution_of_a_space_of_one_experiment_ends():
    spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a'])))
    algorithm = RegularizedEvolution(population_size=1, tournament_size=1)
    with pytest.raises(Exhausted):
        ask(algorithm, spec, [Observation(1, {'x': 0}, 'completed', (1.0,))])


def test_evolution_does_not_repeat_a_grandparent():
    spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a', 'b']), rate=pg.floatv(0.0, 1.0)))
    algorithm = RegularizedEvolution(population_size=2, tournament_size=2)
    trials = run(algorithm, spec, 60, infeasible=0.0)
    assert len({tuple(trial.decisions.items()) for trial in trials}) == 60


def test_evolution_finds_the_better_half_more_often_than_chance():
    spec = pg.dna_spec(pg.Dict({f'x{i}': pg.oneof([0, 1]) for i in range(12)}))
    algorithm = RegularizedEvolution(population_size=8, tournament_size=4)
    history: list[Observation] = []
    for number in range(1, 81):
        suggestion = ask(algorithm, spec, history)
        trial = past(number, suggestion)
        score = float(sum(suggestion.decisions.values()))
        history.append(Observation(number, trial.decisions, 'completed', (score,)))
    mean = sum(t.score or 0.0 for t in history[-20:]) / 20
    assert mean > 8.5


def test_evolution_with_a_step_changes_numbers_locally():
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(1e-6, 1.0, 'log')))
    history = [Observation(1, {'x': 1e-3}, 'completed', (1.0,))]
    algorithm = RegularizedEvolution(1, 1, mutation=ChangeOneDecision(step=0.01))
    children = [ask(algorithm, spec, history, seed).decisions['x'] for seed in range(20)]
    assert all(5e-4 < child < 2e-3 for child in children)


def test_evolution_uses_its_mutation():
    spec = pg.dna_spec(program())
    history = run(RandomSearch(), spec, 1, infeasible=0.0)
    algorithm = RegularizedEvolution(1, 1, mutation=SwapLayers())
    parent = history[0].decisions
    for seed in range(10):
        child = ask(algorithm, spec, history, seed)
        assert child.parent == 1
        assert child.decisions != parent
        assert sorted(child.decisions.values()) == sorted(parent.values())


def test_evolution_crosses_the_winners_of_two_tournaments():
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


def test_evolution_says_that_a_mutation_or_a_crossover_has_nothing_to_change():
    spec = pg.dna_spec(conditional())
    for algorithm in (
        RegularizedEvolution(mutation=InsertLayer()),
        RegularizedEvolution(crossover=LayerRangeCrossover()),
    ):
        with pytest.raises(UserError, match=r'a list with at least two.*Use '):
            algorithm.check_space(spec, 1)
        algorithm.check_space(pg.dna_spec(program()), 1)


def test_evolution_checks_its_rate_of_crossover():
    with pytest.raises(ValueError, match='crossover_rate must lie between 0 and 1'):
        RegularizedEvolution(crossover_rate=-0.1)


@pytest.mark.parametrize('sizes', [(4, 5), (4, 0), (0, 0)])
def test_evolution_checks_its_sizes(sizes):
    with pytest.raises(ValueError, match='tournament_size'):
        RegularizedEvolution(*sizes)
