import pyglove as pg
import pytest

from paxtune.algorithms.base import SuggestionContext
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import Asha, Hyperband, Pause, Promote, PromotingAsha, Stop, TrialCurve
from paxtune.schedulers.base import State
from paxtune.schedulers.rungs import RungScheduler
from tests.conformance.scheduler_suite import check_stops, check_study
from tests.conformance.toy_study import ran

LOSS = MetricReward(metric='loss', goal='minimize')
ACCURACY = MetricReward(metric='accuracy', goal='maximize')
REQUEST = SuggestionContext(pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0))), 0, 9, list)


def trial(id: int, *rewards: float | None, state: State = 'running', pauses: int = 0) -> TrialCurve:
    """A trial that is measured every 10 steps, up to step 100; paused at some of its last."""
    measured = [
        Measurement(10 * n, {}, () if value is None else (value,))
        for n, value in enumerate(rewards, start=1)
    ]
    steps = [each.step for each in measured]
    return TrialCurve(
        id,
        state,
        measured,
        [float(step) for step in steps],
        100.0,
        steps[len(steps) - pauses :],
    )


@pytest.mark.pax('ASHA, Hyperband, population-based')
@pytest.mark.parametrize(
    'scheduler',
    [
        Asha(min_resource=10),
        Asha(min_resource=80, unit='tokens', reduction_factor=2),
        Asha(min_resource=10, grace_period=0.5, reduction_factor=2),
        Asha(min_resource=5, max_resource=50, unit='seconds'),
    ],
)
def test_asha_conforms(scheduler):
    check_stops(scheduler)
    check_study(scheduler)


@pytest.mark.parametrize(
    'scheduler',
    [
        PromotingAsha(min_resource=10),
        PromotingAsha(min_resource=1e7, unit='flops', reduction_factor=2),
        PromotingAsha(min_resource=10, grace_period=0.3),
        PromotingAsha(min_resource=5, max_resource=50, unit='seconds'),
        # Several rungs between two measurements.
        PromotingAsha(min_resource=2, reduction_factor=2),
        Hyperband(min_resource=10),
        Hyperband(min_resource=80, unit='tokens', reduction_factor=2),
    ],
)
@pytest.mark.fast(3)
def test_promoting_schedulers_conform(scheduler):
    check_study(scheduler)


@pytest.mark.parametrize('kind', [Asha, PromotingAsha, Hyperband])
@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'min_resource': 0}, 'min_resource must be greater than 0'),
        ({'min_resource': float('inf')}, 'min_resource must be greater than 0'),
        ({'min_resource': 3, 'max_resource': 3}, 'must be above min_resource'),
        ({'min_resource': 3, 'reduction_factor': 1}, 'at least 2'),
        ({'min_resource': 3, 'unit': 'seconds'}, 'max_resource must be given'),
        ({'min_resource': 3, 'grace_period': 1.0}, 'grace_period'),
    ],
)
def test_invalid_fields_are_refused(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(**fields)


def test_rungs_lie_below_max_resource_and_after_the_grace_period():
    curve = trial(1)
    assert list(RungScheduler(min_resource=10).rung_levels(curve)) == [10, 30, 90]
    assert list(RungScheduler(min_resource=10, reduction_factor=10).rung_levels(curve)) == [10]
    assert list(RungScheduler(min_resource=10, max_resource=40).rung_levels(curve)) == [10, 30]
    assert list(RungScheduler(min_resource=10, grace_period=0.3).rung_levels(curve)) == [30, 90]
    assert list(RungScheduler(min_resource=100).rung_levels(curve)) == []


def test_unknown_max_resource_must_be_given():
    unknown = TrialCurve(1, 'running', [Measurement(10, {}, (1.0,))], [10.0])
    with pytest.raises(ValueError, match='max_resource must be given'):
        Asha(min_resource=3).decide(unknown, [], LOSS)
    assert Asha(min_resource=3, max_resource=99).decide(unknown, [], LOSS) is None


def test_the_reward_at_a_rung_is_the_first_one_from_there_on():
    scheduler = RungScheduler(min_resource=15, reduction_factor=2)
    assert scheduler.rung_rewards(trial(1, 9.0, 8.0, None, 7.0)) == {15: 8.0, 30: 7.0}
    assert scheduler.rung_rewards(trial(2, 9.0)) == {}
    close = RungScheduler(min_resource=4, reduction_factor=2)
    assert close.rung_rewards(trial(1, 0.0, 5.0)) == {4: 0.0, 8: 0.0, 16: 5.0}


def test_asha_lets_the_best_third_go_on():
    scheduler = Asha(min_resource=10)
    others: list[TrialCurve] = []
    went_on = []
    for id, value in enumerate((5.0, 4.0, 6.0, 4.5, 3.0, 9.0, 4.2, 4.3), start=1):
        stops = scheduler.decide(trial(id, value), others, LOSS) is not None
        others.append(trial(id, value, state='stopped' if stops else 'running'))
        went_on += [] if stops else [id]
    # 4.5 was the second of four, 4.2 the third of seven, 4.3 the fourth of eight.
    assert went_on == [1, 2, 4, 5, 7]


def test_asha_decides_once_at_a_rung():
    others = [trial(id, 1.0, 1.0, 1.0, 1.0) for id in range(1, 9)]
    scheduler = Asha(min_resource=20, reduction_factor=9)
    decisions = [scheduler.decide(trial(9, *([2.0] * n)), others, LOSS) for n in (1, 2, 3)]
    assert [isinstance(each, Stop) for each in decisions] == [False, True, False]
    assert scheduler.decide(trial(9, 2.0, 1.0), others, LOSS) is None
    assert scheduler.decide(trial(9, 2.0, 2.0), others, ACCURACY) is None


def test_a_promoted_trial_is_not_paused_again_where_it_was():
    scheduler = PromotingAsha(min_resource=10)
    assert isinstance(scheduler.decide(trial(1, 1.0), [], LOSS), Pause)
    assert scheduler.decide(trial(1, 1.0, pauses=1), [], LOSS) is None
    first = TrialCurve(1, 'running', trial(1, 1.0, 1.0, 1.0).measurements, [10, 20, 30], 100, [10])
    assert scheduler.decide(first, [], LOSS) == Pause(
        'reward 1 at step 30, at the rung of 30 steps'
    )


def paused(id: int, *rewards: float) -> TrialCurve:
    return trial(id, *rewards, state='paused', pauses=1)


def promoted(answer: object) -> int | None:
    return answer.trial if isinstance(answer, Promote) else None


def test_the_highest_rung_promotes_first():
    scheduler = PromotingAsha(min_resource=10)
    low = [paused(id, 1.0) for id in (1, 2, 3)]
    high = [paused(id, 2.0, 2.0, value) for id, value in ((4, 1.2), (5, 1.1), (6, 1.3))]
    assert scheduler.next_action([*low, *high], LOSS, REQUEST, True) == Promote(
        5, 'number 1 of 3 trials at the rung of 30 steps'
    )
    # Trials above were better than none below; of equals the oldest.
    assert promoted(scheduler.next_action([*low, *high[:2]], LOSS, REQUEST, True)) == 1
    assert scheduler.next_action(low[:2], LOSS, REQUEST, True) is None


def test_without_room_the_best_of_the_highest_rung_goes_on_until_one_completes():
    scheduler = PromotingAsha(min_resource=10)
    two = [paused(1, 1.0), paused(2, 2.0, 2.0, 2.0)]
    assert promoted(scheduler.next_action(two, LOSS, REQUEST, False)) == 2
    for state in ('waiting', 'running', 'completed'):
        assert scheduler.next_action([*two, trial(3, state=state)], LOSS, REQUEST, False) is None
    assert scheduler.next_action(two, LOSS, REQUEST, True) is None


def test_brackets_have_the_proportions_of_hyperband():
    scheduler = Hyperband(min_resource=10)
    lowest = [min(scheduler.rung_levels(trial(id)), default=100) for id in range(1, 491)]
    counts = [lowest.count(rung) for rung in (10, 30, 90, 100)]
    # 49 are 27, 12, 6 and 4.
    assert counts == pytest.approx([270, 120, 60, 40], abs=2)


def test_rivals_are_those_of_the_bracket():
    scheduler = Hyperband(min_resource=10)
    ids = [id for id in range(1, 30) if min(scheduler.rung_levels(trial(id)), default=100) == 10]
    assert scheduler.next_action([paused(id, 1.0) for id in ids[:2]], LOSS, REQUEST, True) is None
    three = [paused(id, 1.0) for id in ids[:3]]
    assert promoted(scheduler.next_action(three, LOSS, REQUEST, True)) == ids[0]
    other = next(id for id in range(1, 30) if id not in ids)
    assert (
        scheduler.next_action([paused(id, 1.0) for id in (*ids[:2], other)], LOSS, REQUEST, True)
        is None
    )


def test_each_bracket_of_hyperband_completes_a_trial():
    scheduler = Hyperband(min_resource=10)
    trials = ran(scheduler, LOSS, num_trials=20, workers=4)
    brackets: dict[float, list[str]] = {}
    for each in trials:
        lowest = min(scheduler.rung_levels(trial(each.id)), default=100)
        brackets.setdefault(lowest, []).append(each.state)
    assert set(brackets) == {10, 30, 90, 100}
    assert all('completed' in states for states in brackets.values())
