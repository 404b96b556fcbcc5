import numpy as np
import pyglove as pg
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms.encoding.points import encoder, encoding_spec
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from tests.factories.spaces import values
from tests.properties import examples


@examples(10)
@given(values(), st.integers(0, 2**32))
def test_points_encode_the_decoded_decisions(value, seed):
    spec = pg.dna_spec(value)
    space = FlatSpace(spec)
    box = encoding_spec(space)
    assert len(box.counts) == len(space)
    row = np.random.default_rng(seed).random(len(space))
    snapped, points, _ = encoder(box)(row[None])
    decisions = space.decode(row)
    expected = space.encode(decisions)
    is_open = ~np.isnan(expected)
    np.testing.assert_allclose(snapped[0, is_open], expected[is_open], atol=1e-9)
    again = encoder(box)(np.nan_to_num(expected, nan=0.3)[None])[1]
    np.testing.assert_allclose(points, again, atol=1e-9)
    assert points.shape == (1, len(box.columns))
