import math
from typing import Any

import numpy as np
import pytest
import scipy.optimize

from paxtune.algorithms.gp import model
from paxtune.algorithms.gp.warping import warp


def _observed(count: int, num_pending: int = 0) -> model.TrainingData:
    rng = np.random.default_rng(0)
    points, values = rng.random((32, 2))[: count + num_pending], rng.normal(size=32)
    index = np.arange(len(points))
    is_observed = index < count
    return model.TrainingData(
        points, np.where(is_observed, values[: len(points)], 0.0), is_observed,
        np.ones(len(points), bool), np.zeros(len(points), bool),
    )  # fmt: skip


@pytest.mark.contract
def test_gradients_of_the_likelihood_equal_finite_differences():
    rng = np.random.default_rng(0)
    points, values, columns = rng.random((12, 4)), rng.normal(size=12), np.array([0, 1, 1, 2])
    for theta in rng.normal(size=(5, 5)):
        _, found = model.loss(theta, points, values, columns)
        expected = scipy.optimize.approx_fprime(
            theta, lambda at: model.loss(at, points, values, columns)[0], 1e-7
        )
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.contract
def test_predictions_equal_the_textbook():
    theta = np.array([0.2, -3.0, -1.0, 0.5])
    observed = _observed(9)
    at = np.random.default_rng(1).random((7, 2))

    def kernel(a, b):
        far = np.sqrt((((a[:, None] - b[None]) / np.exp(theta[2:])) ** 2).sum(-1) * 5)
        return np.exp(theta[0]) * (1 + far + far**2 / 3) * np.exp(-far)

    points, values = observed.points, observed.values
    inverse = np.linalg.inv(kernel(points, points) + np.exp(theta[1]) * np.eye(9))
    like = kernel(at, points)
    found = model.predict(model.posterior(theta, observed, np.arange(2, dtype=np.int32)), at)
    np.testing.assert_allclose(found.mean, like @ inverse @ values, rtol=1e-5)
    variance = np.exp(theta[0]) - np.einsum('ij,jk,ik->i', like, inverse, like)
    np.testing.assert_allclose(found.deviation, np.sqrt(variance), rtol=1e-5)
    assert np.all(np.exp(found.feasible) > 0.99)


def test_pending_trials_lower_the_deviation_and_keep_the_mean():
    theta = np.array([0.2, -3.0, -1.0, 0.5])
    columns = np.arange(2, dtype=np.int32)
    without, with_one = _observed(9), _observed(9, 1)
    at = with_one.points[9:10]
    before = model.predict(model.posterior(theta, without, columns), at)
    after = model.predict(model.posterior(theta, with_one, columns), at)
    np.testing.assert_allclose(before.mean, after.mean, rtol=1e-9)
    assert after.deviation[0] < 0.7 * before.deviation[0]


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


def test_a_memo_does_not_change_the_fit():
    columns, memo = np.arange(2, dtype=np.int32), dict[bytes, Any]()
    for observed in (_observed(9), _observed(9, 3), _observed(12), _observed(9)):
        expected, found = (
            model.fit(observed, columns, np.random.default_rng(0), memo=each)
            for each in (None, memo)
        )
        assert found.tolist() == expected.tolist()
        assert len(memo) == 1


def test_scores_at_the_noise_distance_differ_by_the_noise():
    theta = np.array([0.4, -4.0, -1.0])
    apart = math.sqrt(5) * model.noise_distance(theta)
    variance = 2 * math.exp(0.4) * (1 - model.matern52(np.array([apart]))[0])
    assert variance == pytest.approx(math.exp(-4.0), rel=0.02)
