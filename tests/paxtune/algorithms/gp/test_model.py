import math
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from paxtune.algorithms.gp import model
from paxtune.algorithms.gp.warping import warp


@pytest.fixture
def _exactly() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def _observed(count: int, size: int, num_pending: int = 0) -> model.TrainingData:
    rng = np.random.default_rng(0)
    points, values = rng.random((32, 2))[:size], rng.normal(size=32)[:size]
    points[count + num_pending :] = 0.0
    values[count:] = 0.0
    index = np.arange(size)
    return model.TrainingData(
        points, values, index < count, index < count + num_pending, np.zeros(size, bool)
    )


@pytest.mark.usefixtures('_exactly')
@pytest.mark.slow
def test_padding_has_no_effect():
    theta = np.array([0.2, -3.0, -1.0, 0.5])
    columns = np.arange(2, dtype=np.int32)
    at = np.random.default_rng(1).random((7, 2))
    found = [
        model.predict(model.posterior(theta, _observed(9, size, 2), columns), at)
        for size in (11, 16, 32)
    ]
    for one, other in zip(found[0], found[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-9)


@pytest.mark.usefixtures('_exactly')
@pytest.mark.contract
def test_predictions_equal_the_textbook():
    theta = np.array([0.2, -3.0, -1.0, 0.5])
    observed = _observed(9, 16)
    at = np.random.default_rng(1).random((7, 2))

    def kernel(a, b):
        far = np.sqrt((((a[:, None] - b[None]) / np.exp(theta[2:])) ** 2).sum(-1) * 5)
        return np.exp(theta[0]) * (1 + far + far**2 / 3) * np.exp(-far)

    points, values = observed.points[:9], observed.values[:9]
    inverse = np.linalg.inv(kernel(points, points) + np.exp(theta[1]) * np.eye(9))
    like = kernel(at, points)
    mean, deviation, feasible = model.predict(
        model.posterior(theta, observed, np.arange(2, dtype=np.int32)), at
    )
    np.testing.assert_allclose(mean, like @ inverse @ values, rtol=1e-5)
    variance = np.exp(theta[0]) - np.einsum('ij,jk,ik->i', like, inverse, like)
    np.testing.assert_allclose(deviation, np.sqrt(variance), rtol=1e-5)
    assert np.all(np.exp(feasible) > 0.99)


@pytest.mark.usefixtures('_exactly')
@pytest.mark.slow
def test_pending_trials_lower_the_deviation_and_keep_the_mean():
    theta = np.array([0.2, -3.0, -1.0, 0.5])
    columns = np.arange(2, dtype=np.int32)
    without, with_one = _observed(9, 16), _observed(9, 16, 1)
    at = np.asarray(with_one.points)[9:10]
    before = model.predict(model.posterior(theta, without, columns), at)
    after = model.predict(model.posterior(theta, with_one, columns), at)
    np.testing.assert_allclose(before[0], after[0], rtol=1e-9)
    assert after[1][0] < 0.7 * before[1][0]


@pytest.mark.usefixtures('_exactly')
@pytest.mark.contract
def test_the_fit_finds_the_relevant_decision():
    rng = np.random.default_rng(0)
    points = rng.random((32, 3))
    values = warp(np.sin(6 * points[:, 1]))
    everything = np.ones(32, bool)
    observed = model.TrainingData(points, values, everything, everything, ~everything)
    theta = model.fit(observed, np.arange(3, dtype=np.int32), rng)
    lengths = theta[2:]
    assert lengths[1] + 1 < min(lengths[0], lengths[2])
    assert theta[1] < math.log(1e-2), 'there is no noise'
