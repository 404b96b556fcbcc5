import numpy as np
import pyglove as pg
import pytest

from paxtune.algorithms import Observation
from paxtune.algorithms.encoding.points import encoding_spec
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp import model, search

_SPACE = FlatSpace(
    pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.floatv(0.0, 1.0), z=pg.oneof(['a', 'b'])))
)
_LENGTHS = (0.2, 0.8, 0.4)  # Their geometric mean is 0.4.


def _radius(number: int, noise: float, num_running: int = 0) -> np.ndarray:
    # The first trial is the best.
    trials = [
        Observation(id, {'x': 0.3, 'y': 0.5, 'z': 0}, 'completed', (-float(id),))
        for id in range(1, number)
    ]
    theta = np.log([1.0, noise, *_LENGTHS])
    center, radius = search.trust_region(
        number, trials, num_running, theta, _SPACE, encoding_spec(_SPACE)
    )
    assert center[:2] == pytest.approx([0.3, 0.5])
    return radius


def test_every_second_trial_has_the_whole_space() -> None:
    assert _radius(5, 1e-6).tolist() == [1.0] * 3


def test_the_trust_region_is_longer_along_long_scales_and_shrinks() -> None:
    assert _radius(2, 1e-6) == pytest.approx([0.2, 0.8, 1.0])
    assert _radius(10, 1e-6) == pytest.approx([0.05, 0.2, 1.0])
    assert _radius(100, 1e-6) == pytest.approx([0.005, 0.02, 1.0])


def test_trials_that_began_before_the_best_one_ended_do_not_shrink_the_region() -> None:
    assert _radius(100, 1e-6, num_running=98) == pytest.approx(_radius(2, 1e-6))
    assert _radius(100, 1e-6, num_running=90) == pytest.approx(_radius(10, 1e-6))


def test_the_trust_region_is_no_smaller_than_the_noise() -> None:
    distance = model.noise_distance(np.log([1.0, 0.1, *_LENGTHS]))
    assert _radius(100, 0.1) == pytest.approx([0.2 * distance, 0.8 * distance, 1.0])
    assert _radius(100, 3.0).tolist() == [1.0] * 3
