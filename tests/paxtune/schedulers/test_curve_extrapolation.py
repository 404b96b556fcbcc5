"""`CurveExtrapolation` and its model."""

import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import CurveExtrapolation, TrialCurve
from paxtune.schedulers.curve_model import MOST_POINTS, chance_to_beat
from tests.properties import examples
from trainer.symbolic.serialization import from_json_text, to_json_text

LOSS = MetricReward('minimize', 'loss')
ACCURACY = MetricReward('maximize', 'accuracy')
SCHEDULER = CurveExtrapolation()

AT = [n / 40 for n in range(1, 41)]
"""The resource at each of 40 measurements, as a share of max_resource."""


def curve(
    rewards: Sequence[float | None], id: int = 1, max_resource: float | None = 20.0, first: int = 1
) -> TrialCurve:
    """Measured after each step."""
    measured = [
        Measurement(step, {}, () if reward is None else (reward,))
        for step, reward in enumerate(rewards, first)
    ]
    return TrialCurve(
        id, 'running', measured, [float(each.step) for each in measured], max_resource
    )


def chance(scores: Sequence[float], best: float, count: int = 20) -> float:
    """That of a curve that is measured so often up to its end."""
    return chance_to_beat([(i + 1) / count for i in range(len(scores))], scores, best)


def power_laws(count: int, seed: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Losses of trials that differ in where they end, how fast, and by noise."""
    rng = np.random.default_rng(seed)
    end, gain = rng.normal(1.0, 0.3, (count, 1)), rng.uniform(1.0, 3.0, (count, 1))
    power, noise = rng.uniform(0.3, 1.5, (count, 1)), rng.uniform(0.0, 0.03, (count, 1))
    steps = np.arange(1, 41)
    return end + gain * steps**-power + noise * rng.normal(size=(count, 40))


def test_winning_trials_go_on_and_unpromising_ones_stop_early() -> None:
    losses = power_laws(400)
    wrong, would_win, spent, hopeless = 0, 0, 0, 0
    for rivals in np.split(losses, 40):  # Ten trials, of which the last nine are judged by turns.
        for own, others in ((i, np.delete(rivals, i, axis=0)) for i in range(10)):
            best = float(others[:, -1].min())
            stop = next(
                (
                    n
                    for n in range(4, 40, 3)
                    if chance_to_beat(AT[:n], (-rivals[own, :n]).tolist(), -best) < 0.05
                ),
                40,
            )
            if rivals[own, -1] < best:
                would_win += 1
                wrong += stop < 40
            elif rivals[own, -1] > best + 0.5:
                hopeless += 1
                spent += stop
    assert would_win >= 30 and hopeless >= 100
    assert wrong <= 0.05 * would_win
    assert spent <= 0.35 * 40 * hopeless


def test_probabilities_are_calibrated() -> None:
    losses = power_laws(300, seed=1)
    goals = itertools.cycle(np.quantile(losses[:, -1], [0.05, 0.2, 0.4, 0.6]))
    told, came = [], []
    for own, goal in zip(losses, goals, strict=False):
        told.append(chance_to_beat(AT[:10], (-own[:10]).tolist(), -goal))
        came.append(own[-1] < goal)
    groups = np.digitize(told, [0.05, 0.3, 0.7, 0.95])
    for group in range(5):
        chosen = groups == group
        assert chosen.sum() >= 10
        assert abs(np.mean(np.array(told)[chosen]) - np.mean(np.array(came)[chosen])) < 0.2
    assert np.mean(np.array(came)[groups == 0]) < 0.05


scores = st.lists(st.integers(-100, 100), min_size=2, max_size=30)


@given(scores, st.integers(-100, 200), st.sampled_from([0.25, 3.0, 1e6]), st.integers(-999, 999))
@examples(50)
def test_probability_is_invariant_to_shift_and_scale(
    values: list[int], best: int, scale: float, shift: int
) -> None:
    expected = chance(values, best, 31)
    assert 0.0 <= expected <= 1.0
    moved = [scale * (value + shift) for value in values]
    assert chance(moved, scale * (best + shift), 31) == pytest.approx(expected, abs=1e-6)


@given(scores, st.integers(-100, 150), st.integers(0, 50))
@examples(50)
def test_probability_is_defined_for_any_curve(values: list[int], best: int, more: int) -> None:
    assert 0.0 <= chance(values, best, 31) <= 1.0
    # As the curve stands above what is to beat, so that nothing is scaled by that.
    low = min(values)
    assert chance(values, low - 1 - more, 31) >= chance(values, low - 1, 31) - 1e-9


@pytest.mark.parametrize('values', [[0.0] * 12, [1e300] * 12, [-1e300] * 12, [3.5, 3.5]])
def test_constant_curves(values: list[float]) -> None:
    assert chance(values, values[0]) == 0.5
    assert chance(values, values[0] - 1e299) == 0.5
    assert chance(values, values[0] + 1e299) < 0.15


def test_a_constant_curve_has_a_decreasing_probability() -> None:
    chances = [chance([0.0] * count, 1.0) for count in range(3, 20)]
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise(chances))
    assert chances[-1] < 0.01


def test_spikes_do_not_hide_the_trend() -> None:
    good = [1.0 - 0.9**i for i in range(1, 11)]
    for spike in (-1e3, -1e30, -1e300):
        for where in (0, 4, 8):
            spiked = [spike if i == where else value for i, value in enumerate(good)]
            assert chance(spiked, 0.8) > 0.1
    assert chance([-1e300, *([0.1] * 14)], 0.5) < 0.05


def test_a_worsening_curve_has_a_low_probability() -> None:
    assert chance([1.0 - 0.1 * i for i in range(12)], 1.5) < 0.02
    assert chance([-(2.0**i) for i in range(12)], 0.5) < 0.05


def test_many_measurements_cost_no_more() -> None:
    spent = [i / 10_000 for i in range(1, 5_001)]
    values = [1.0 - math.exp(-3.0 * x) for x in spent]
    few = spent[:: len(spent) // MOST_POINTS]
    expected = chance_to_beat(few, [1.0 - math.exp(-3.0 * x) for x in few], 0.95)
    assert chance_to_beat(spent, values, 0.95) == pytest.approx(expected, abs=0.1)
    began = time.process_time()
    for _ in range(20):
        chance_to_beat(spent, values, 0.95)
    assert (time.process_time() - began) / 20 < 0.01


# --- The scheduler ---


def decision(
    own: TrialCurve, *others: TrialCurve, scheduler: CurveExtrapolation = SCHEDULER
) -> Any:
    return scheduler.decide(own, others, LOSS)


FLAT = [2.0, 2.0, 2.01, 2.0, 2.0, 2.0, 2.0, 2.0]
RIVAL = curve([2.0 * 0.8**i for i in range(8)], id=2)


def test_an_unpromising_trial_is_stopped_with_a_reason() -> None:
    stop = decision(curve(FLAT), RIVAL)
    assert stop is not None
    assert stop.reason.startswith('reward 2 at step 8: the chance to end better than 0.419')
    assert decision(RIVAL, curve(FLAT, id=3)) is None
    assert decision(curve(FLAT)) is None
    assert decision(curve(FLAT), curve([], id=2), curve([None], id=3)) is None


def test_minimize_and_maximize_are_symmetric() -> None:
    for n in range(1, 9):
        as_loss = decision(curve(FLAT[:n]), RIVAL)
        rival = curve([-(each.reward or 0.0) for each in RIVAL.measurements], id=2)
        as_score = SCHEDULER.decide(curve([-value for value in FLAT[:n]]), [rival], ACCURACY)
        assert (as_loss is None) == (as_score is None)


def test_others_count_with_their_last_rewards() -> None:
    worsened = curve([0.1, 0.2, 3.0, 4.0], id=2)
    assert decision(curve(FLAT), worsened) is None
    assert decision(curve(FLAT), worsened, RIVAL) is not None


def test_too_few_points_and_the_end() -> None:
    last = next(n for n in range(1, 9) if decision(curve(FLAT[:n]), RIVAL))
    assert last >= 4
    scheduler = CurveExtrapolation(min_points=7)
    assert decision(curve(FLAT[:6]), RIVAL, scheduler=scheduler) is None
    assert decision(curve(FLAT[:7]), RIVAL, scheduler=scheduler) is not None
    gaps = [value for pair in zip(FLAT[:6], [None] * 6, strict=True) for value in pair]
    assert decision(curve(gaps[:-1]), RIVAL, scheduler=scheduler) is None
    assert decision(curve(FLAT, max_resource=8.0), RIVAL) is None


def test_a_smaller_probability_stops_fewer() -> None:
    scheduler = CurveExtrapolation(probability=1e-6)
    assert decision(curve(FLAT), RIVAL, scheduler=scheduler) is None


def test_unknown_max_resource() -> None:
    with pytest.raises(ValueError, match='max_resource must be given'):
        decision(curve(FLAT, max_resource=None), RIVAL)
    scheduler = CurveExtrapolation(max_resource=20.0, unit='seconds')
    assert decision(curve(FLAT, max_resource=None), RIVAL, scheduler=scheduler) == decision(
        curve(FLAT), RIVAL
    )
    assert (
        decision(
            curve(FLAT, max_resource=None), RIVAL, scheduler=CurveExtrapolation(max_resource=8.0)
        )
        is None
    )


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'probability': 0.0}, 'between 0 and 1'),
        ({'probability': 1.0}, 'between 0 and 1'),
        ({'min_points': 1}, 'at least 2'),
        ({'max_resource': 0.0}, 'greater than 0'),
        ({'max_resource': math.inf}, 'greater than 0'),
        ({'unit': 'seconds'}, 'must be given in seconds'),
    ],
)
def test_invalid_fields_are_refused(fields: dict[str, float | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CurveExtrapolation(**fields)


def test_curve_extrapolation_is_a_component() -> None:
    scheduler = CurveExtrapolation(probability=0.1, min_points=6)
    again = from_json_text(to_json_text(scheduler), CurveExtrapolation, source='text')
    assert again.probability == 0.1 and again.min_points == 6
    with pytest.raises(ValueError, match='exactly one reward'):
        scheduler.decide(curve(FLAT), [RIVAL], None)
