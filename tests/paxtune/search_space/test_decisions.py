"""Decisions: sizes of spaces, kinds, what is stored, completion of partial ones."""

import math
import random

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vizier import pyvizier as vz
from vizier.service import pyvizier as svz

from paxtune.algorithms.encoding.enumeration import enumerate_decisions
from paxtune.algorithms.encoding.sampling import complete, draw, mutate
from paxtune.search_space.decisions import (
    Decisions,
    decide,
    decision_points,
    from_dna,
    is_integer,
    size,
    slot_ids,
    spec_from_json,
    spec_to_json,
    to_dna,
)
from paxtune.search_space.parameters import reader, to_parameters, to_search_space
from paxtune.search_space.space import Space
from tests.factories.spaces import SEEDS, values
from tests.factories.toys import toy
from tests.properties import examples
from trainer.symbolic.ranges import intv


@pytest.mark.parametrize(
    ('value', 'expected'),
    [
        (intv(1, 10**12), 10**12),
        (pg.manyof(20, list(range(40)), sorted=True), math.comb(40, 20)),
        (pg.permutate(list(range(30))), math.factorial(30)),
        (pg.manyof(3, [intv(1, 10), intv(1, 100)], distinct=False), 110**3),
        (pg.manyof(2, [intv(1, 10), intv(1, 100)], distinct=False, sorted=True), 11_100),
        (pg.oneof([1, pg.oneof([2, pg.floatv(0.0, 1.0)])]), None),
        (pg.floatv(0.0, 1.0), None),
    ],
)
def test_sizes_of_large_spaces(value, expected):
    assert size(pg.dna_spec(pg.Dict(x=value, y=pg.oneof([1, 2])))) == (expected and 2 * expected)


def test_integers_stay_integers():
    spec = pg.dna_spec(pg.Dict(n=intv(1, 8, 'log'), x=pg.floatv(1.0, 8.0)))
    again = spec_from_json(spec_to_json(spec))
    assert pg.eq(again, spec)
    assert [is_integer(point) for point in decision_points(again)] == [True, False]
    decisions: Decisions = {'n': 3, 'x': 3.0}
    back = from_dna(again, to_dna(spec, decisions))
    assert {id_: type(value) for id_, value in back.items()} == {'n': int, 'x': float}
    with pytest.raises(ValueError, match=r'n: expected an integer: 3\.0'):
        to_dna(spec, {'n': 3.0, 'x': 3.0})
    with pytest.raises(ValueError, match='no greater'):
        to_dna(spec, {'n': 9, 'x': 3.0})


def test_integers_are_integers_in_vizier():
    spec = pg.dna_spec(pg.Dict(n=intv(1, 8, 'log')))
    (parameter,) = to_search_space(spec)
    config = vz.SearchSpace()
    config.root.add_int_param('n', 1, 8, scale_type=vz.ScaleType.LOG)
    expected = svz.StudyConfig(search_space=config).to_proto().parameters
    assert parameter == expected[0]
    for value in (2.5, 'a'):
        with pytest.raises(ValueError, match=r'is not a value|could not convert'):
            reader(spec)({'n': value})


_KINDS = {
    'oneof': pg.oneof(['a', 'b', 'c']),
    'permutate': pg.permutate(['a', 'b', 'c']),
    'manyof': pg.manyof(2, ['a', 'b', 'c']),
    'sorted': pg.manyof(2, ['a', 'b', 'c'], sorted=True),
    'repeated': pg.manyof(2, ['a', 'b'], distinct=False),
    'repeated_sorted': pg.manyof(3, ['a', 'b'], distinct=False, sorted=True),
    'integer': intv(3, 7),
    'nested': pg.oneof([pg.Dict(x=pg.oneof([1, 2])), pg.oneof([intv(1, 2), 'b'])]),
    'nested_permutate': pg.permutate([pg.oneof(['a', 'b']), 'c', intv(1, 2)]),
    'nested_repeated': pg.manyof(2, [pg.oneof(['a', 'b']), 'c'], distinct=False, sorted=True),
}


@pytest.mark.pax('Primitives: `oneof`, `manyof`')
@pytest.mark.parametrize('kind', list(_KINDS))
@pytest.mark.fast(4)
def test_every_kind_of_decision_works_end_to_end(kind):
    """Drawn, mutated, stored in Vizier, named and decoded: every element is reachable."""
    space = Space(pg.Dict(x=_KINDS[kind].clone(deep=True), y=1))
    expected = {pg.to_json_str(space.materialize(each)) for each in enumerate_decisions(space.spec)}
    rng = random.Random(0)
    decisions = draw(space.spec, rng)
    drawn, mutated = set(), set()
    for _ in range(30 * len(expected)):
        drawn.add(tuple(draw(space.spec, rng).items()))
        decisions = mutate(space.spec, decisions, rng)
        mutated.add(tuple(decisions.items()))
    for reached in (drawn, mutated):
        made = set()
        for items in reached:
            stored = reader(space.spec)(to_parameters(space.spec, dict(items)))
            assert space.parse(space.readable(stored)) == dict(items)
            made.add(pg.to_json_str(space.materialize(stored)))
        assert made == expected


@examples(20)
@given(values(), st.integers(0, 2**32))
def test_partial_decisions_are_completed(value, seed):
    spec = pg.dna_spec(value)
    rng = random.Random(seed)
    whole = draw(spec, rng)
    given_ = {id_: whole[id_] for id_ in whole if rng.random() < 0.5}
    completed = complete(spec, given_, rng)
    assert completed.items() >= given_.items()
    assert list(completed) == list(to_dna(spec, completed).to_dict())
    assert complete(spec, whole, rng) == whole


def test_completion_reaches_all_decisions():
    choice = pg.manyof(3, ['a', 'b', 'c', 'd', 'e'], sorted=True)
    spec = pg.dna_spec(pg.Dict(x=choice))
    rng = random.Random(0)
    found = {tuple(complete(spec, {'x[1]': 2}, rng).values()) for _ in range(100)}
    assert found == {(0, 2, 3), (0, 2, 4), (1, 2, 3), (1, 2, 4)}


def test_completion_of_nothing_is_a_draw():
    spec = pg.dna_spec(pg.Dict(x=pg.permutate([1, 2, 3]), y=intv(1, 9), z=pg.oneof([1, 2])))
    assert complete(spec, {}, random.Random(3)) == draw(spec, random.Random(3))


def test_conditional_decisions_imply_their_choice():
    inside = pg.Dict(heads=pg.oneof([1, 2]), rate=pg.floatv(0.0, 1.0))
    spec = pg.dna_spec(pg.Dict(layers=pg.manyof(2, ['none', inside, 'other'], sorted=True)))
    for seed in range(20):
        completed = complete(spec, {'layers[0][=1/3].heads': 1}, random.Random(seed))
        assert completed['layers[0]'] == 1
        assert completed['layers[1]'] == 2


@pytest.mark.parametrize(
    'given_',
    [
        {'kind': 0, 'kind[=1/2].heads': 0},  # They exclude each other.
        {'kind': 2},
        {'kind': -1},
        {'size': 9},
        {'size': 1.5},
        {'depth': 1},  # Unknown to this space.
        {'some[0]': 2},  # No candidate is left for the second slot.
        {'some[0]': 1, 'some[1]': 1},
        {'some[0]': 2, 'some[1]': 1},
    ],
)
def test_contradictory_decisions_are_rejected(given_):
    value = pg.Dict(
        kind=pg.oneof(['a', pg.Dict(heads=pg.oneof([1, 2]))]),
        size=intv(1, 8),
        some=pg.manyof(2, ['a', 'b', 'c'], sorted=True),
    )
    with pytest.raises(ValueError):
        complete(pg.dna_spec(value), given_, random.Random(0))


@examples(30)
@given(values(), SEEDS)
@pytest.mark.contract
def test_decisions_equal_those_of_pyglove(value, seed):
    spec = pg.dna_spec(value)
    dna = spec.random_dna(random.Random(seed))
    decisions = from_dna(spec, dna)
    assert decisions == dna.to_dict()
    assert pg.eq(to_dna(spec, decisions), dna)
    assert pg.eq(spec_from_json(spec_to_json(spec)), spec)


@pytest.mark.parametrize(
    'text',
    [
        '{"_type": "type", "name": "os.system"}',
        '{"_type": "pyglove.generators.geno.Template", "elements": [{"_type": ["x"]}]}',
        '{"_type": "pyglove.generators.geno.Template", "elements": [], "hints":'
        ' {"_type": "_OpaqueObject", "value": ""}}',
        '["__tuple__", 1]',
        '{"_type": "pyglove.generators.geno.Template", "elements": [{"num_choices": 10001}]}',
        '{"num_choices": 1000, "candidates": [{"num_choices": 1000}]}',
        '{"num_choices": "1"}',
    ],
)
def test_a_stored_space_names_nothing_but_decisions(text):
    with pytest.raises(ValueError, match='not part of a search space'):
        spec_from_json(text)


@pytest.mark.parametrize(
    'text',
    [
        '[' * 100_000,
        '{',
        '3',
        '{"_type": "pyglove.generators.geno.Template", "elements": [], "allow_partial": 1}',
        '{"_type": "pyglove.generators.geno.Template", "elements": 3}',
    ],
)
def test_an_invalid_stored_space_is_refused(text):
    with pytest.raises(ValueError, match='not a search space'):
        spec_from_json(text)


def test_spaces_are_infinite_only_with_a_range_of_floats():
    assert size(pg.dna_spec(pg.Dict(x=pg.oneof([1, 2]), y=pg.permutate([1, 2, 3])))) == 12
    assert size(pg.dna_spec(pg.Dict(x=pg.oneof([1, pg.floatv(0.0, 1.0)])))) is None


def test_decide_visits_active_points_alone():
    asked: list[str] = []

    def choose(point):
        asked.extend(slot_ids(point))
        return 0.5 if isinstance(point, pg.geno.Float) else list(range(point.num_choices))

    decide(Space(toy()).spec, choose)
    assert asked == ['rate', 'layer', 'layer[=0/3].heads', 'widths[0]', 'widths[1]']
