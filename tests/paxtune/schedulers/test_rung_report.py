"""The report on how well rungs predict ends."""

import dataclasses
import random
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.objectives.measurement import Measurement
from paxtune.schedulers import MedianStopping, RankStopping, TrialCurve
from paxtune.schedulers.base import State
from paxtune.schedulers.rung_report import rank_correlation, rung_report, rungs_reached, warning

MILESTONES = RankStopping(milestones=[[10, 0.5, 1], [30, 0.5, 1]])


def curve(id: int, rewards: Sequence[float | None], state: State = 'completed') -> TrialCurve:
    """Measured at 10, 20, …; its max_resource is 50."""
    steps = [10 * (number + 1) for number in range(len(rewards))]
    measured = [
        Measurement(step, {}, () if reward is None else (reward,))
        for step, reward in zip(steps, rewards, strict=True)
    ]
    return TrialCurve(id, state, measured, [float(step) for step in steps], max_resource=50.0)


def test_a_rung_counts_its_trials_and_their_states() -> None:
    curves = [
        curve(1, [1.0, 1.0, 3.0, 1.0, 1.0]),
        curve(2, [2.0, 1.0, 2.0, 1.0, 2.0]),
        curve(3, [3.0, 1.0, 1.0, 1.0, 3.0]),
        curve(4, [9.0], 'stopped'),
        curve(5, [9.0, 9.0], 'stopped'),
        curve(6, [9.0, 9.0, 9.0], 'paused'),
        curve(7, [4.0], 'running'),
        curve(8, [], 'waiting'),
    ]
    low, high = rung_report(curves, MILESTONES)
    assert (low.resource, low.trials, low.beyond, low.stopped, low.paused) == (10.0, 7, 5, 1, 0)
    assert (high.resource, high.trials, high.beyond, high.stopped, high.paused) == (
        30.0,
        4,
        3,
        0,
        1,
    )
    # From 10 to 30: of 1, 2, 3 and 6; to the end: of 1, 2 and 3.
    assert (low.next_pairs, low.end_pairs, high.next_pairs, high.end_pairs) == (4, 3, 3, 3)
    assert [low.next, low.end] == pytest.approx([0.2, 1.0])
    assert [high.next, high.end] == pytest.approx([-1.0, -1.0])


def test_rewards_that_come_late_and_rungs_between_two_measurements() -> None:
    scheduler = RankStopping(milestones=[[11, 0.5, 1], [12, 0.5, 1]])
    curves = [curve(id, [None, None, float(id), None, float(-id)]) for id in range(1, 4)]
    low, high = rung_report(curves, scheduler)
    # Both are passed at step 30; what comes next is the end, not the same reward once more.
    assert low.next == high.next == low.end == pytest.approx(-1.0)


def test_a_fork_reaches_only_rungs_beyond_its_parents() -> None:
    own = curve(7, [None, 1.0, 2.0, 3.0])
    fork = dataclasses.replace(
        own, measurements=own.measurements[1:], resources=own.resources[1:], forked_from=(1, 10)
    )
    assert [rung.resource for rung in rung_report([own], MILESTONES)] == [10.0, 30.0]
    assert [rung.resource for rung in rung_report([fork], MILESTONES)] == [30.0]


def test_the_final_measurement_reaches_no_rung() -> None:
    scheduler = RankStopping(milestones=[[45, 0.5, 1]])
    assert rung_report([curve(1, [1.0] * 5), curve(2, [2.0] * 5)], scheduler) == []
    assert rungs_reached([curve(1, [1.0] * 5)], scheduler) == {}


def test_default_rungs_are_shares_of_max_resource() -> None:
    curves = [curve(id, [float(id)] * 5) for id in range(1, 4)]
    rungs = rung_report(curves, MedianStopping())
    assert [rung.resource for rung in rungs] == [5.0, 12.5, 25.0]
    assert [rung.end for rung in rungs] == [pytest.approx(1.0)] * 3
    assert rungs_reached(curves, MedianStopping()) == {}


def test_unknown_max_resource() -> None:
    unknown = [
        TrialCurve(each.id, each.state, each.measurements, each.resources)
        for each in [curve(1, [1.0] * 4), curve(2, [2.0] * 5), curve(3, [3.0] * 5, 'running')]
    ]
    assert [rung.resource for rung in rung_report(unknown, MedianStopping())] == [
        5.0,
        12.5,
        25.0,
    ]
    assert rung_report(unknown[2:], MedianStopping()) == []
    assert rung_report([], MedianStopping()) == []


def test_the_highest_rung_that_each_trial_has_reached() -> None:
    curves = [curve(3, [1.0, 1.0], 'running'), curve(5, [1.0] * 4), curve(6, [], 'waiting')]
    assert rungs_reached(curves, MILESTONES) == {3: 10.0, 5: 30.0}


numbers = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), max_size=12)


def ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values
    ]


@given(numbers)
def test_correlations_are_of_ranks_and_ties_share_theirs(pairs: list[tuple[int, int]]) -> None:
    left, right = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    found = rank_correlation(pairs)
    if len({*left}) < 2 or len({*right}) < 2:
        assert found is None
    else:
        expected = statistics.correlation(ranks(left), ranks(right))
        assert found == pytest.approx(expected, abs=1e-9)


def crossing(count: int) -> list[TrialCurve]:
    """Trials of which the first best end as the worst."""
    return [curve(id, [float(id)] * 4 + [float(-id)]) for id in range(count)]


def test_crossing_curves_give_a_warning() -> None:
    text = warning(rung_report(crossing(5), MILESTONES), 'tokens')
    assert 'at 30 tokens with those at the end is -1.00 (5 trials)' in text
    assert 'at 10 tokens with those at the end is -1.00 (5 trials)' in text
    assert 'next rung' not in text  # There they are as they were.
    assert 'grace_period' in text
    assert max(map(len, text.splitlines())) <= 100


def test_changed_ranks_between_rungs_give_a_warning() -> None:
    rewards = random.Random(0).sample(range(8), 8)
    curves = [curve(id, [id, id, rewards[id], 0.0], 'paused') for id in range(8)]
    text = warning(rung_report(curves, MILESTONES), 'steps')
    assert 'at 10 steps with those at the next rung is' in text
    assert 'at the end' not in text


@pytest.mark.parametrize(
    'curves', [crossing(4), [curve(id, [float(id)] * 5) for id in range(9)], []]
)
def test_no_warning_about_few_trials_or_equal_ranks(
    curves: list[TrialCurve],
) -> None:
    assert warning(rung_report(curves, MILESTONES), 'steps') == ''
