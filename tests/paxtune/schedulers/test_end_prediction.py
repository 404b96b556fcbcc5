"""Final scores, predicted from early ones and from decisions."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from paxtune.schedulers.end_prediction import MIN_TRIALS, Array, predict_ends

COUNT = 60


def trials(seed: int, delay: float = 0.0) -> tuple[Array, Array]:
    """Scores [COUNT, 3] and points [COUNT, 2]: the first decision delays a trial, and costs nothing
    in the end.
    """
    rng = np.random.default_rng(seed)
    points = rng.random((COUNT, 2))
    ends = rng.standard_normal(COUNT)
    early, middle = ends - 2.0 - delay * points[:, 0], ends - 1.0 - 0.3 * delay * points[:, 0]
    return np.stack([early, middle, ends], axis=1), points


def stopped(scores: Array) -> Array:
    """The same where a third goes on from each level, the best ones there."""
    found = scores.copy()
    for level in range(scores.shape[1] - 1):
        there = np.flatnonzero(np.isfinite(found[:, level]))
        worst = there[np.argsort(-found[there, level])][max(MIN_TRIALS, len(there) // 3) :]
        found[worst, level + 1 :] = np.nan
    return found


def order(scores: Array) -> list[int]:
    return np.argsort(scores, kind='stable').tolist()


@given(seed=st.integers(0, 1000))
def test_a_gain_that_decisions_do_not_explain_keeps_the_order(seed: int) -> None:
    scores, points = trials(seed)
    predicted = predict_ends(stopped(scores), points)
    assert order(predicted[:, 0]) == order(scores[:, 0])
    assert predicted[:, 0] == pytest.approx(scores[:, 2], abs=1e-6)


@pytest.mark.parametrize('seed', range(5))
def test_trials_that_a_decision_delays_are_expected_to_catch_up(seed: int) -> None:
    scores, points = trials(seed, delay=1.5)
    errors = scores[:, 2] - predict_ends(stopped(scores), points)[:, 0]
    unexplained = scores[:, 2] - scores[:, 0]
    assert np.std(errors) < 0.4 * np.std(unexplained)


def test_a_prediction_uses_all_levels_between() -> None:
    scores, points = trials(0, delay=1.0)
    scores[: COUNT // 2, 2] = np.nan
    scores[COUNT // 2 :, 0] = np.nan  # No trial has both the first level and an end.
    predicted = predict_ends(scores, points)[: COUNT // 2, 0]
    assert predicted == pytest.approx(trials(0, delay=1.0)[0][: COUNT // 2, 2], abs=0.2)


def test_few_trials_show_no_gain() -> None:
    scores, points = trials(0, delay=1.0)
    scores[MIN_TRIALS - 1 :, 1:] = np.nan
    predicted = predict_ends(scores, points)
    assert np.array_equal(predicted[:, 0], scores[:, 0])
    assert np.isnan(predicted[MIN_TRIALS:, 1]).all()


@given(seed=st.integers(0, 1000), scale=st.floats(1e-3, 1e3), shift=st.floats(-1e3, 1e3))
def test_the_unit_of_scores_has_no_effect(seed: int, scale: float, shift: float) -> None:
    scores, points = trials(seed, delay=1.0)
    own, other = (
        predict_ends(stopped(each), points)[:, 0] for each in (scores, scale * scores + shift)
    )
    assert other == pytest.approx(scale * own + shift, rel=1e-4, abs=1e-4 * scale)


def test_the_size_of_an_outlier_has_no_effect_on_other_trials() -> None:
    scores, points = trials(0, delay=1.0)
    found = []
    for scale in (1e3, 1e9):
        scores[0] = -scale, -2 * scale, -4 * scale
        found.append(predict_ends(scores, points)[1:, 0])
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_gains_without_an_order_change_the_order_little() -> None:
    by_score, by_end = [], []
    for seed in range(40):
        scores, points = trials(seed)
        noise = np.random.default_rng([seed, 1]).standard_normal(scores[:, :2].shape)
        scores[:, :2] += 0.5 * noise
        predicted = predict_ends(stopped(scores), points)[:, 0]
        by_score.append(scipy.stats.spearmanr(scores[:, 0], scores[:, 2]).statistic)
        by_end.append(scipy.stats.spearmanr(predicted, scores[:, 2]).statistic)
    assert np.mean(by_end) > np.mean(by_score) - 0.03


def test_trials_that_end_before_a_level_show_their_gain() -> None:
    scores, points = trials(0)
    scores[:, 1] = np.nan  # The second level is that of a longer trial, which has paused there.
    scores[COUNT // 2 :, 2] = np.nan
    longer = np.array([[-2.0, -1.0, np.nan]])
    predicted = predict_ends(np.concatenate([scores, longer]), np.concatenate([points, points[:1]]))
    assert predicted[:COUNT, 0] == pytest.approx(trials(0)[0][:, 2], abs=1e-6)


def test_scores_near_the_largest_number_count_as_they_are() -> None:
    scores, points = trials(0)
    scores[:, 0] = np.where(np.arange(COUNT) % 2, 1e308, -1e308)
    assert np.isfinite(predict_ends(scores, points)).all()


@pytest.mark.parametrize('columns', [0, 1, 60])
def test_predictions_are_finite(columns: int) -> None:
    scores = np.zeros((COUNT, 3))
    points = np.random.default_rng(0).random((COUNT, columns))
    assert predict_ends(scores, points) == pytest.approx(np.zeros((COUNT, 2)))
    assert predict_ends(np.zeros((0, 3)), np.zeros((0, columns))).shape == (0, 2)


@pytest.mark.parametrize(('effect', 'counts'), [(0.15, False), (1.5, True)])
def test_a_small_effect_does_not_count_however_many_trials_show_it(
    effect: float, counts: bool
) -> None:
    rng = np.random.default_rng(0)
    decision, early = rng.random(400), rng.normal(size=400)
    late = early + effect * decision + rng.normal(0.0, 0.1, 400)
    late[300:] = np.nan
    gain = predict_ends(np.stack([early, late], axis=1), decision[:, None])[:, 0] - early
    # The correlation of the gain with the decision is 0.4 or 0.97.
    assert float(np.ptp(gain)) == pytest.approx(effect if counts else 0.0, rel=0.1, abs=1e-3)


@pytest.mark.parametrize('early', [0.5, 0.1, 0.01])
def test_decisions_explain_ends_also_where_early_scores_are_about_equal(early: float) -> None:
    rng = np.random.default_rng(0)
    points = rng.random((COUNT, 1))
    scores = np.stack([0.1 * early * rng.random(COUNT), 0.5 + 0.4 * points[:, 0]], axis=1)
    ends = scores[:, 1].copy()
    scores[::2, 1] = np.nan
    assert predict_ends(scores, points)[::2, 0] == pytest.approx(ends[::2], abs=0.05)
