import numpy as np
import pytest

from paxtune.algorithms.sobol import sobol_point


@pytest.mark.parametrize('dimensions', [1, 2, 3, 40])
def test_points_are_those_of_scipy(dimensions: int) -> None:
    from scipy.stats import qmc

    engine = qmc.Sobol(dimensions, rng=np.random.default_rng(2**63 + 5))
    expected = engine.random(64)
    found = [sobol_point(dimensions, index, 2**63 + 5) for index in range(64)]
    np.testing.assert_array_equal(found, expected)


def test_a_far_point_is_that_of_scipy() -> None:
    from scipy.stats import qmc

    engine = qmc.Sobol(5, rng=np.random.default_rng(3)).fast_forward(123_456)
    np.testing.assert_array_equal(sobol_point(5, 123_456, 3), engine.random(1)[0])
