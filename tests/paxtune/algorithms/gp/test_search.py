import numpy as np
import pyglove as pg
import pytest

from paxtune.algorithms import Observation
from paxtune.algorithms.encoding.points import encoding_spec
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp import model, search

_LENGTH = 0.5


@pytest.mark.parametrize('noise', [1e-6, 0.1])
def test_the_trust_region_shrinks_while_scores_in_it_differ_by_more_than_noise(noise):
    space = FlatSpace(pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0))))
    # The first trial is the best.
    trials = [
        Observation(number, {'x': 0.3}, 'completed', (-float(number),)) for number in range(1, 101)
    ]
    theta = np.log([1.0, noise, _LENGTH])
    inputs = theta, space, encoding_spec(space)
    center, early = search._trust_region(4, trials[:3], *inputs)
    _, late = search._trust_region(100, trials[:99], *inputs)
    assert center == pytest.approx(0.3)
    assert late < early < 0.4
    assert late == pytest.approx(max(0.01, _LENGTH * model.noise_distance(theta)))
    _, whole = search._trust_region(101, trials, *inputs)
    assert whole == 1.0
