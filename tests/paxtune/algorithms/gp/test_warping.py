import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms.gp.warping import warp
from tests.properties import examples


@examples(60)
@given(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=20))
def test_warping_keeps_the_order(scores):
    given_scores = np.array(scores)
    warped = warp(given_scores)
    assert np.all(np.isfinite(warped))
    order = np.argsort(given_scores, kind='stable')
    assert np.all(np.diff(warped[order]) >= -1e-9)
    for one, other in itertools.pairwise(order):
        if scores[one] == scores[other]:
            assert warped[one] == warped[other]
