import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from paxtune.algorithms.gp.acquisition import log_expected_improvement


@pytest.fixture
def _exactly() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures('_exactly')
@pytest.mark.contract
def test_log_expected_improvement_is_accurate_near_and_far():
    mean, deviation, best = np.array([0.5, -1.0, 0.0]), np.array([1.0, 0.3, 2.0]), 0.2
    z = (mean - best) / deviation
    expected = deviation * (
        (np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)) + z * scipy.special.ndtr(z)
    )
    found = log_expected_improvement(jnp.asarray(mean), jnp.asarray(deviation), best)
    np.testing.assert_allclose(found, np.log(expected), rtol=1e-9)
    far = log_expected_improvement(jnp.array([-4.9, -5.1, -40.0, -400.0]), jnp.ones(4), 0.0)
    assert np.all(np.isfinite(far))
    assert np.all(np.diff(far) < 0)
    # E[max(x, 0)] of a normal variable far below: φ(z) / z².
    np.testing.assert_allclose(
        far[2], -800 - math.log(2 * math.pi) / 2 - 2 * math.log(40), atol=0.01
    )
