import random
import re
from collections import Counter

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms.encoding.sampling import draw
from paxtune.algorithms.evolution.crossover import LayerRangeCrossover, UniformCrossover
from paxtune.search_space.decisions import Decisions, to_dna
from tests.conformance.algorithm_suite import conditional
from tests.factories.spaces import layer_spaces, values
from tests.properties import examples
from trainer.symbolic.errors import UserError


@examples(15)
@given(values(), st.integers(0, 2**32))
def test_children_are_legal_and_consist_of_their_parents(value, seed):
    spec = pg.dna_spec(value)
    rng = random.Random(seed)
    mother, father = draw(spec, rng), draw(spec, rng)
    before = dict(mother), dict(father)
    child = UniformCrossover().cross(spec, mother, father, rng)
    assert list(to_dna(spec, child).to_dict()) == list(child)
    assert (mother, father) == before
    for point in spec.decision_points:
        if isinstance(point, pg.geno.Float) and '[' not in point.id.path and child:
            known = {mother[point.id.path], father[point.id.path]}
            assert child[point.id.path] in known


@examples(15)
@given(values(), st.integers(0, 2**32))
def test_equal_parents_have_equal_children(value, seed):
    spec = pg.dna_spec(value)
    rng = random.Random(seed)
    parent = draw(spec, rng)
    assert UniformCrossover().cross(spec, parent, parent, rng) == parent


def _children(value: object, mother: Decisions, father: Decisions) -> list[Decisions]:
    spec = pg.dna_spec(value)
    return [
        UniformCrossover().cross(spec, mother, father, random.Random(seed)) for seed in range(400)
    ]


def test_decisions_come_from_either_parent_with_equal_probability():
    value = pg.Dict({f'x{i}': pg.oneof([1, 2]) for i in range(4)})
    children = _children(value, dict.fromkeys(_NAMES, 0), dict.fromkeys(_NAMES, 1))
    counts = Counter(tuple(child.values()) for child in children)
    assert len(counts) == 16
    assert all(abs(count - 25) < 25 for count in counts.values())


_NAMES = [f'x{i}' for i in range(4)]


def test_conditional_decisions_come_with_their_choice():
    mother: Decisions = {'layer': 0, 'layer[=0/3].heads': 1, 'layer[=0/3].rate': 0.5, 'scale': 0.6}
    father: Decisions = {'layer': 2, 'scale': 0.8}
    for child in _children(conditional(), mother, father):
        assert child['scale'] in (0.6, 0.8)
        if child['layer'] == 0:
            assert (child['layer[=0/3].heads'], child['layer[=0/3].rate']) == (1, 0.5)
        else:
            assert list(child) == ['layer', 'scale']


def test_conditional_decisions_of_equal_choices_are_mixed():
    mother: Decisions = {'layer': 0, 'layer[=0/3].heads': 1, 'layer[=0/3].rate': 0.5, 'scale': 0.6}
    father = mother | {'layer[=0/3].heads': 2, 'layer[=0/3].rate': 0.9}
    found = Counter(
        (child['layer[=0/3].heads'], child['layer[=0/3].rate'])
        for child in _children(conditional(), mother, father)
    )
    assert set(found) == {(1, 0.5), (1, 0.9), (2, 0.5), (2, 0.9)}


def test_distinct_candidates_keep_their_slots_where_possible():
    value = pg.Dict(x=pg.permutate(['a', 'b', 'c', 'd']))
    mother: Decisions = {'x[0]': 0, 'x[1]': 1, 'x[2]': 2, 'x[3]': 3}
    father: Decisions = {'x[0]': 0, 'x[1]': 2, 'x[2]': 1, 'x[3]': 3}
    orders = {tuple(child.values()) for child in _children(value, mother, father)}
    assert orders == {(0, 1, 2, 3), (0, 2, 1, 3)}


def test_sorted_candidates_come_from_the_parents_with_their_children():
    open_ = [pg.Dict(y=pg.oneof(list(range(9)))) for _ in range(5)]
    value = pg.Dict(x=pg.manyof(2, open_, sorted=True))
    mother: Decisions = {'x[0]': 0, 'x[0][=0/5].y': 3, 'x[1]': 2, 'x[1][=2/5].y': 4}
    father: Decisions = {'x[0]': 2, 'x[0][=2/5].y': 5, 'x[1]': 4, 'x[1][=4/5].y': 6}
    inside = {0: {3}, 2: {4, 5}, 4: {6}}
    pairs = set()
    for child in _children(value, mother, father):
        pairs.add((child['x[0]'], child['x[1]']))
        for slot in range(2):
            candidate = int(child[f'x[{slot}]'])
            assert child[f'x[{slot}][={candidate}/5].y'] in inside[candidate]
    assert pairs == {(0, 2), (2, 4)}  # Both have 2.


def _layers(value: object, decisions: Decisions) -> list[object]:
    """The layers of the experiment that decisions make."""
    return list(pg.materialize(value, to_dna(pg.dna_spec(value), decisions)).layers)


@examples(10)
@given(layer_spaces(), st.integers(0, 2**32))
def test_a_range_of_layers_comes_from_the_second_parent(value, seed):
    spec = pg.dna_spec(value)
    rng = random.Random(seed)
    mother, father = draw(spec, rng), draw(spec, rng)
    before = dict(mother), dict(father)
    child = LayerRangeCrossover().cross(spec, mother, father, random.Random(seed))
    assert list(to_dna(spec, child).to_dict()) == list(child)
    assert (mother, father) == before
    assert LayerRangeCrossover().cross(spec, mother, father, random.Random(seed)) == child
    assert LayerRangeCrossover().cross(spec, mother, mother, rng) == mother
    # Each layer is from a parent; those of the father are neighbours.
    pairs = zip(*(_layers(value, each) for each in (mother, father, child)), strict=True)
    assert re.fullmatch(
        '[ms]*[fs]*[ms]*',
        ''.join('s' if pg.eq(m, f) else 'm' if pg.eq(m, c) else 'f' * pg.eq(f, c) or 'x'
                for m, f, c in pairs),
    )  # fmt: skip
    rates = [each.get('rate') for each in (mother, child)]
    assert rates[0] == rates[1]


def test_every_range_of_layers_is_drawn():
    value = pg.Dict(layers=[pg.oneof(['m', 'f']) for _ in range(4)], x=pg.oneof(['m', 'f']))
    mother, father = (draw(pg.dna_spec(value), random.Random(0)) for _ in range(2))
    mother, father = dict.fromkeys(mother, 0), dict.fromkeys(father, 1)
    spec = pg.dna_spec(value)
    cross = LayerRangeCrossover().cross
    children = [cross(spec, mother, father, random.Random(seed)) for seed in range(400)]
    counts = Counter(''.join('mf'[int(i)] for i in child.values()) for child in children)
    expected = {
        'm' * begin + 'f' * (end - begin) + 'm' * (4 - end) + 'm'
        for begin in range(4)
        for end in range(begin + 1, 5)
    }
    assert set(counts) == expected
    assert all(abs(count - 40) < 30 for count in counts.values())


def test_without_a_common_layer_list_the_child_equals_the_first_parent():
    value = pg.Dict(x=pg.oneof([None, [pg.oneof([1, 2]), pg.oneof([3, 4])]]))
    spec = pg.dna_spec(value)
    without: Decisions = {'x': 0}
    having: Decisions = {'x': 1, 'x[=1/2][0]': 0, 'x[=1/2][1]': 1}
    cross = LayerRangeCrossover().cross
    for mother, father in ((without, having), (having, without), (without, without)):
        assert cross(spec, mother, father, random.Random(0)) == mother
    LayerRangeCrossover().check_space(spec)
    with pytest.raises(UserError, match=r'LayerRangeCrossover needs a list.*Use UniformCrossover'):
        LayerRangeCrossover().check_space(pg.dna_spec(conditional()))
