import math
import random

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.search_space.decisions import from_dna, size
from paxtune.search_space.space import Space
from paxtune.search_space.spec_value import value_of
from tests.factories.spaces import values
from tests.properties import examples
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv


@examples(20)
@given(values(), st.integers(0, 99))
def test_dnas_of_the_spec_are_valid_for_the_value(value, seed):
    spec = pg.dna_spec(value)
    again = pg.dna_spec(value_of(spec))
    assert [str(point.id) for point in again.decision_points] == [
        str(point.id) for point in spec.decision_points
    ]
    assert size(again) == size(spec)
    dna = pg.random_dna(spec, random.Random(seed))
    numbers = dna.to_numbers()
    assert pg.DNA.from_numbers(numbers, again).to_numbers() == numbers
    assert from_dna(again, dna) == from_dna(spec, dna)


def test_plain_literals_are_parsed():
    value = pg.Dict(
        a=[1, pg.Dict(b=pg.oneof(['x', 'y']), c=3)],
        d=pg.manyof(2, [10, 20, 30], sorted=True),
        e=pg.oneof([None, pg.floatv(0.5, 1.0)]),
        f=intv(1, 9, 'log'),
    )
    space, mirror = Space(value), Space(value_of(pg.dna_spec(value)))
    readable = {'a[1].b': 'y', 'd[0]': 10, 'd[1]': 30, 'e': None, 'f': 7}
    decisions = mirror.parse(readable)
    assert space.parse(readable) == decisions
    assert mirror.readable(decisions) == readable
    made = mirror.materialize(decisions)
    assert pg.eq(made, pg.Dict(a=[None, pg.Dict(b='y')], d=[10, 30], e=None, f=7))


def test_candidates_are_rebuilt_from_literals():
    candidates = ["it's", 'None', None, True, 1, 0.5, math.inf, pg.Dict(x=1), '"', 'x' * 200]
    spec = pg.dna_spec(pg.Dict(x=pg.oneof(candidates)))
    shown = value_of(spec).x.candidates
    assert shown[:6] == ["it's", 'None', None, True, 1, 0.5]
    assert shown[6:9] == ['inf', '{x=1}', '"']
    assert shown[9].startswith("'xxx")
    plain = pg.geno.space([pg.geno.oneof([pg.geno.constant()] * 3)])
    assert value_of(plain).candidates == [0, 1, 2]


@pytest.mark.parametrize(
    'locations',
    [['', ''], ['a', 'a'], ['a', 'a.b'], ['a', 'b', 'a.c'], ['[1]', '[0]'], ['a.x', 'b', 'a.y']],
)
def test_decisions_without_locations_are_numbered(locations):
    spec = pg.geno.space(
        [
            pg.geno.oneof([pg.geno.constant()] * (2 + i), location=pg.KeyPath.parse(location))
            for i, location in enumerate(locations)
        ]
    )
    space = Space(value_of(spec))
    assert space.paths == [f'decision_{i}' for i in range(len(locations))]
    last = pg.DNA([1 + i for i in range(len(locations))])
    assert list(from_dna(space.spec, last).values()) == last.to_numbers()


def test_a_single_point_is_a_space():
    assert Space(value_of(pg.geno.floatv(0.0, 1.0))).ids == ['']


class Custom(pg.hyper.CustomHyper):
    def custom_decode(self, dna):
        return dna.value


def test_custom_decisions_are_rejected():
    spec = pg.dna_spec(pg.Dict(x=[pg.oneof([1, Custom()])]))
    with pytest.raises(UserError, match=r'^x\[0\]\[=1/2\]: .* no CustomDecisionPoint\. Use pg\.o'):
        value_of(spec)
