import random

import numpy as np
import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms.encoding.sampling import draw
from paxtune.algorithms.encoding.scaling import from_unit, to_unit
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.search_space.decisions import to_dna
from tests.factories.spaces import values
from tests.properties import examples
from trainer.symbolic.ranges import intv


@examples(60)
@given(values(), st.integers(0, 2**32))
def test_decoding_inverts_encoding(value, seed):
    spec = pg.dna_spec(value)
    space = FlatSpace(spec)
    decisions = draw(spec, random.Random(seed))
    row = space.encode(decisions)
    assert row.shape == (len(space),)
    back = space.decode(row)
    assert list(back) == list(decisions)
    for id_, number in decisions.items():
        # Integers from 2**50 on, and floats, are equal up to rounding.
        assert back[id_] == pytest.approx(number, rel=1e-9, abs=1e-9)
    missing = {space.features[i].id for i in np.flatnonzero(np.isnan(row))}
    assert missing == {feature.id for feature in space.features} - set(decisions)


@examples(30)
@given(values(), st.integers(0, 2**32))
def test_every_row_decodes_to_legal_decisions(value, seed):
    spec = pg.dna_spec(value)
    space = FlatSpace(spec)
    rng = np.random.default_rng(seed)
    for row in (rng.random(len(space)), np.zeros(len(space)), np.ones(len(space))):
        decisions = space.decode(row)
        to_dna(spec, decisions)  # Raises for an illegal decision.
        np.testing.assert_array_equal(
            np.isnan(space.encode(decisions)),
            [feature.id not in decisions for feature in space.features],
        )


def test_features_have_parents_and_conditions():
    spec = pg.dna_spec(
        pg.Dict(
            kind=pg.oneof(['none', pg.Dict(width=pg.oneof([64, 16, 32]), rate=pg.floatv(0.0, 1.0))])
        )
    )
    kind, width, rate = FlatSpace(spec).features
    assert (kind.kind, kind.parent) == ('category', -1)
    assert (width.kind, width.order, width.parent, width.condition) == ('ordinal', (1, 2, 0), 0, 1)
    assert (rate.kind, rate.order, rate.parent, rate.condition) == ('number', (), 0, 1)


def test_distinct_choices_are_decoded_without_repetition():
    spec = pg.dna_spec(pg.Dict(x=pg.permutate(['a', 'b', 'c'])))
    assert list(FlatSpace(spec).decode([0.9, 0.9, 0.4]).values()) == [2, 0, 1]


@pytest.mark.parametrize('scale', [None, 'linear', 'log', 'rlog'])
def test_unit_values_are_uniform_on_the_scale(scale):
    point = pg.dna_spec(pg.Dict(x=pg.floatv(1.0, 100.0, scale))).elements[0]
    middle = {None: 50.5, 'linear': 50.5, 'log': 10.0, 'rlog': 91.0}[scale]
    assert from_unit(point, 0.5) == pytest.approx(middle)
    assert to_unit(point, middle) == pytest.approx(0.5)
    assert (from_unit(point, 0.0), from_unit(point, 1.0)) == (
        (100.0, 1.0) if scale == 'rlog' else (1.0, 100.0)
    )


def test_the_last_number_of_a_wide_reversed_range_has_a_unit_value():
    point = pg.dna_spec(pg.Dict(x=pg.floatv(1e-20, 1.0, 'rlog'))).elements[0]
    assert to_unit(point, 1.0) == 0.0  # 1e-20 + 1.0 - 1.0 is 0, which has no logarithm.


def test_integers_have_cells():
    point = pg.dna_spec(pg.Dict(x=intv(1, 4))).elements[0]
    assert [from_unit(point, share) for share in (0.0, 0.24, 0.26, 0.51, 0.76, 1.0)] == [
        1, 1, 2, 3, 4, 4,
    ]  # fmt: skip
    assert [to_unit(point, number) for number in (1, 4)] == [0.125, 0.875]
