import random
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms.encoding.sampling import draw
from paxtune.search_space.decisions import to_dna
from paxtune.search_space.decoder import Decoder
from search_spaces import nas
from tests.factories.spaces import values
from tests.factories.toys import Block, Dense
from tests.properties import examples
from trainer.symbolic.component import components


def decoder(value: Any) -> Decoder:
    template = pg.template(value)
    return Decoder(template, template.dna_spec())


def symbols(value: Any) -> list[Any]:
    """All symbolic values in a tree."""
    found = [value] if isinstance(value, pg.Symbolic) else []
    for each in found[:1]:
        for _, child in each.sym_items():
            found += symbols(child)
    return found


@examples(20)
@given(values(), st.integers(0, 2**32))
def test_decoding_equals_pyglove(value, seed):
    spec = pg.dna_spec(value)
    decisions = draw(spec, random.Random(seed))
    before = pg.to_json_str(value)
    made = decoder(value).decode(decisions)
    assert pg.eq(made, pg.materialize(value, to_dna(spec, decisions)))
    assert pg.to_json_str(value) == before
    assert not {id(each) for each in symbols(made)} & {id(each) for each in symbols(value)}
    for each in symbols(made):
        assert made.sym_get(each.sym_path) is each
        assert each.sym_root is made


def test_decoded_parts_know_their_paths():
    value = nas.StdlibNas()
    spec = pg.dna_spec(value)
    for seed in range(2):
        decisions = draw(spec, random.Random(seed))
        made = decoder(value).decode(decisions)
        assert pg.eq(made, pg.materialize(value, to_dna(spec, decisions)))
        assert all(made.sym_get(each.sym_path) is each for each in components(made))


def test_candidates_are_converted_by_their_fields():
    class Holder(pg.Object):
        rate: float
        sizes: list[float]
        options: dict[str, Any] = {}

    value = Holder(pg.oneof([1, 2]), pg.manyof(2, [1, 2, 3]), {'x': pg.oneof([{'y': [1]}, None])})
    made = decoder(value).decode({'rate': 1, 'sizes[0]': 2, 'sizes[1]': 0, 'options.x': 0})
    assert (made.rate, made.sizes) == (2.0, [3.0, 1.0])
    assert {type(made.rate), *map(type, made.sizes)} == {float}
    assert isinstance(made.options.x.y, pg.List)


def test_functors_with_decisions_can_be_called():
    @pg.functor()
    def power(base: float, exponent: float = 2) -> float:
        return base**exponent

    value = pg.Dict(f=power(pg.oneof([3, 4])))
    made = decoder(value).decode({'f.base': 1})
    assert made.f() == 16
    assert made.f(exponent=3) == 64


def test_a_decision_at_the_root_is_decoded_as_a_copy():
    candidate = Dense(3)
    made = decoder(pg.oneof([candidate, Block()])).decode({'': 0})
    assert made == candidate
    assert made is not candidate


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'x': None}, 'the decision for x is missing'),
        ({'x': 2}, r'x: the indices \[2\] are out of range'),
        ({'x': -1}, r'x: the indices \[-1\] are out of range'),
        ({'y': 1.5}, r'y: 1.5 is out of range'),
        ({'y': float('nan')}, 'y: nan is out of range'),
        ({'z[1]': 0}, 'z: the choices must differ from each other'),
        ({'z[1]': 1, 'z[0]': 2}, 'z: the choices must be in order'),
    ],
)
def test_illegal_decisions_are_refused(change, message):
    value = pg.Dict(
        x=pg.oneof(['a', 'b']), y=pg.floatv(0.0, 1.0), z=pg.manyof(2, [1, 2, 3], sorted=True)
    )
    decisions = {'x': 1, 'y': 0.5, 'z[0]': 0, 'z[1]': 1} | change
    with pytest.raises(ValueError, match=message):
        decoder(value).decode({key: made for key, made in decisions.items() if made is not None})
