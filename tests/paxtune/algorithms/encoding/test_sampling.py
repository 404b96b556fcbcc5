"""Random draws and mutations of decisions."""

import math
import random
from collections import Counter
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms.encoding.sampling import draw, mutate
from paxtune.algorithms.encoding.scaling import from_unit, to_unit
from paxtune.search_space.decisions import Decisions, active_decision_points, to_dna
from tests.conformance.algorithm_suite import (
    conditional,
)
from tests.factories.spaces import changed_points, values
from tests.properties import examples
from trainer.symbolic.ranges import intv


def _draws(decision: Any, count: int = 2000) -> list[Any]:
    spec = pg.dna_spec(pg.Dict(x=decision))
    rng = random.Random(0)
    return [tuple(draw(spec, rng).values()) for _ in range(count)]


@pytest.mark.pax('Primitives: `oneof`, `manyof`')
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


def test_integers_of_wide_ranges_stay_in_bounds():
    for scale in (None, 'log', 'rlog'):
        drawn = [number for (number,) in _draws(intv(1, 2**53, scale), 200)]
        assert 1 <= min(drawn) < max(drawn) <= 2**53


def test_repeated_sorted_choices_are_in_order():
    assert all(
        list(chosen) == sorted(chosen)
        for chosen in _draws(pg.manyof(3, [1, 2, 3], distinct=False, sorted=True), 100)
    )


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
    assert len(changed_points(spec, parent, child)) == 1
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
    counts = Counter(
        changed_points(spec, parent, mutate(spec, parent, rng))[0] for _ in range(2000)
    )
    assert set(counts) == set(parent)
    assert all(abs(count - 500) < 110 for count in counts.values())


def test_mutation_draws_children_of_a_new_candidate():
    spec = pg.dna_spec(conditional())
    parent: Decisions = {'layer': 2, 'scale': 0.7}
    children = [mutate(spec, parent, random.Random(seed)) for seed in range(60)]
    opened = [child for child in children if child['layer'] == 0]
    assert len({child['layer[=0/3].rate'] for child in opened}) == len(opened) > 5
    assert all(child['scale'] == 0.7 for child in opened)


def test_mutation_uses_the_scale():
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
def test_local_mutation_steps_on_the_scale(scale):
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


def test_local_mutation_changes_integers_for_any_step():
    spec = pg.dna_spec(pg.Dict(x=intv(1, 3)))
    rng = random.Random(0)
    assert {mutate(spec, {'x': 2}, rng, 1e-6)['x'] for _ in range(20)} == {1, 3}
    assert mutate(spec, {'x': 3}, rng, 1e-6) == {'x': 2}


def test_mutated_permutations_swap_two_candidates_with_their_children():
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


def test_mutated_sorted_choices_stay_sorted_with_their_children():
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
