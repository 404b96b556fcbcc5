import math

import numpy as np
import pyglove as pg
import pytest
import scipy.optimize
import scipy.special

from paxtune.algorithms.encoding.points import encoder, encoding_spec
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp import model
from paxtune.algorithms.gp.acquisition import (
    Acquisition,
    AcquisitionContext,
    log_expected_improvement,
)


@pytest.mark.contract
def test_log_expected_improvement_is_accurate_near_and_far():
    mean, deviation, best = np.array([0.5, -1.0, 0.0]), np.array([1.0, 0.3, 2.0]), 0.2
    z = (mean - best) / deviation
    expected = deviation * (
        (np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)) + z * scipy.special.ndtr(z)
    )
    found, _ = log_expected_improvement(mean, deviation, best)
    np.testing.assert_allclose(found, np.log(expected), rtol=1e-9)
    far, _ = log_expected_improvement(np.array([-4.9, -5.1, -40.0, -400.0]), np.ones(4), 0.0)
    assert np.all(np.isfinite(far))
    assert np.all(np.diff(far) < 0)
    # E[max(x, 0)] of a normal variable far below: φ(z) / z².
    np.testing.assert_allclose(
        far[2], -800 - math.log(2 * math.pi) / 2 - 2 * math.log(40), atol=0.01
    )


def _data(values, last_score: float | None) -> model.TrainingData:
    """Trials of one decision; the last one has no score yet, or this one."""
    scores = np.array([*values, last_score or 0.0])
    is_known = np.arange(len(scores)) < len(values) + (last_score is not None)
    points = np.linspace(0.1, 0.9, len(scores))[:, None]
    return model.TrainingData(points, scores, is_known, is_known, np.zeros(len(scores), bool))


def test_the_improvement_is_that_of_the_mean_after_the_trial():
    theta, values, best = np.array([0.2, -0.5, -0.5]), [0.3, 0.1, -0.4, 0.6, 0.2], 0.4
    encoding = encoding_spec(FlatSpace(pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0)))))
    point = _data(values, None).points[-1:]

    def predicted(last_score: float | None) -> tuple[model.Posterior, model.Prediction]:
        known = model.posterior(theta, _data(values, last_score), encoding.columns)
        return known, model.predict(known, point)

    before, at = predicted(None)
    spread = math.sqrt(at.deviation[0] ** 2 + math.exp(theta[1]))
    scores = at.mean[0] + spread * scipy.special.ndtri((np.arange(200) + 0.5) / 200)
    means = np.array([predicted(float(score))[1].mean[0] for score in scores])
    none = np.zeros(1)
    inputs = AcquisitionContext(best, none, none, point[0], np.ones(1), none)
    _, found = Acquisition('log_ei', encoding, before, inputs)(point)
    expected = math.log(np.mean(np.maximum(means - best, 0.0))) + at.feasible[0]
    assert found[0] == pytest.approx(expected, abs=0.02)


def _acquisition(kind) -> Acquisition:
    value = pg.Dict(
        x=pg.floatv(0.0, 1.0),
        kind=pg.oneof(['a', 'b', pg.floatv(0.0, 1.0)]),
        y=pg.floatv(1e-3, 1.0, 'log'),
    )
    encoding = encoding_spec(FlatSpace(pg.dna_spec(value)))
    rng = np.random.default_rng(0)
    rows = rng.random((12, 4))
    _, points, _ = encoder(encoding)(rows)
    numbers = np.arange(12)
    data = model.TrainingData(
        points, np.where(numbers < 8, rng.normal(size=12), 0), numbers < 8, numbers < 10,
        numbers >= 10,
    )  # fmt: skip
    posterior = model.posterior(np.array([0.2, -4.0, -0.5, 0.3, 0.1, -0.8]), data, encoding.columns)
    prior, weight, center = rng.random((3, 4))
    return Acquisition(
        kind,
        encoding,
        posterior,
        AcquisitionContext(
            0.5, prior, weight, center, np.full(4, 0.3), rng.normal(size=len(encoding.columns))
        ),
    )


@pytest.mark.parametrize('kind', ['log_ei', 'ucb', 'pe'])
def test_gradients_equal_finite_differences(kind):
    score = _acquisition(kind)
    rows = np.random.default_rng(1).random((20, 4))
    numbers = [0, 2, 3]
    for row, gradient in zip(rows, score.gradient(rows), strict=True):

        def value(at, row=row):
            moved = row.copy()
            moved[numbers] = at
            return score(moved[None])[1][0]

        expected = scipy.optimize.approx_fprime(row[numbers], value, 1e-7)
        np.testing.assert_allclose(gradient[numbers], expected, rtol=1e-4, atol=1e-4)
        assert gradient[1] == 0


def test_values_do_not_depend_on_the_rows_beside_them():
    score = _acquisition('log_ei')
    rows = np.random.default_rng(1).random((5000, 4))
    ends = [score(part)[1] for part in np.split(rows, [1, 700, 4000])]
    np.testing.assert_allclose(score(rows)[1], np.concatenate(ends), rtol=1e-9)
