import pyglove as pg
import pytest

from paxtune.algorithms.base import SuggestionContext
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import Asha, Curve, Hyperband, Pause, Promote, PromotingAsha, Stop
from paxtune.schedulers.rungs import Rungs
from tests.conformance.policy_suite import check_stops, check_study
from tests.conformance.toy_study import ran

LOSS = MetricReward(metric='loss', goal='minimize')
ACCURACY = MetricReward(metric='accuracy', goal='maximize')
REQUEST = SuggestionContext(pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0))), 0, 9, list)


def trial(id: int, *rewards: float | None, state: str = 'running', pauses: int = 0) -> Curve:
    """A trial that is measured every 10 steps, up to step 100; paused at its last so many."""
    measured = [
        Measurement(10 * n, {}, () if value is None else (value,))
        for n, value in enumerate(rewards, start=1)
    ]
    steps = [each.step for each in measured]
    return Curve(
        id,
        state,  # type: ignore[arg-type]
        measured,
        [float(step) for step in steps],
        100.0,
        steps[len(steps) - pauses :],
    )


@pytest.mark.parametrize(
    'policy',
    [
        Asha(min_budget=10),
        Asha(min_budget=80, unit='tokens', reduction_factor=2),
        Asha(min_budget=10, grace=0.5, reduction_factor=2),
        Asha(min_budget=5, max_budget=50, unit='seconds'),
    ],
)
def test_asha_conforms(policy):
    check_stops(policy)
    check_study(policy)


@pytest.mark.parametrize(
    'policy',
    [
        PromotingAsha(min_budget=10),
        PromotingAsha(min_budget=1e7, unit='flops', reduction_factor=2),
        PromotingAsha(min_budget=10, grace=0.3),
        PromotingAsha(min_budget=5, max_budget=50, unit='seconds'),
        # Several rungs between two measurements.
        PromotingAsha(min_budget=2, reduction_factor=2),
        Hyperband(min_budget=10),
        Hyperband(min_budget=80, unit='tokens', reduction_factor=2),
    ],
)
@pytest.mark.fast(3)
def test_promoting_policies_conform(policy):
    check_study(policy)


@pytest.mark.parametrize('kind', [Asha, PromotingAsha, Hyperband])
@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'min_budget': 0}, 'min_budget must be greater than 0'),
        ({'min_budget': float('inf')}, 'min_budget must be greater than 0'),
        ({'min_budget': 3, 'max_budget': 3}, 'must be above min_budget'),
        ({'min_budget': 3, 'reduction_factor': 1}, 'at least 2'),
        ({'min_budget': 3, 'unit': 'seconds'}, 'max_budget must be given'),
        ({'min_budget': 3, 'grace': 1.0}, 'grace'),
    ],
)
def test_impossible_fields_are_refused(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(**fields)


def test_rungs_lie_below_the_budget_and_beyond_the_grace():
    curve = trial(1)
    assert list(Rungs(min_budget=10).rungs(curve)) == [10, 30, 90]
    assert list(Rungs(min_budget=10, reduction_factor=10).rungs(curve)) == [10]
    assert list(Rungs(min_budget=10, max_budget=40).rungs(curve)) == [10, 30]
    assert list(Rungs(min_budget=10, grace=0.3).rungs(curve)) == [30, 90]
    assert list(Rungs(min_budget=100).rungs(curve)) == []


def test_a_budget_that_nobody_knows_is_asked_for():
    unknown = Curve(1, 'running', [Measurement(10, {}, (1.0,))], [10.0])
    with pytest.raises(ValueError, match='max_budget must be given'):
        Asha(min_budget=3).verdict(unknown, [], LOSS)
    assert Asha(min_budget=3, max_budget=99).verdict(unknown, [], LOSS) is None


def test_a_rung_is_worth_the_first_reward_from_there_on():
    policy = Rungs(min_budget=15, reduction_factor=2)
    assert policy.values([trial(1, 9.0, 8.0, None, 7.0), trial(2, 9.0)]) == [{15: 8.0, 30: 7.0}, {}]


def test_asha_lets_the_best_third_go_on():
    policy = Asha(min_budget=10)
    others: list[Curve] = []
    went_on = []
    for id, value in enumerate((5.0, 4.0, 6.0, 4.5, 3.0, 9.0, 4.2, 4.3), start=1):
        stops = policy.verdict(trial(id, value), others, LOSS) is not None
        others.append(trial(id, value, state='stopped' if stops else 'running'))
        went_on += [] if stops else [id]
    # 4.5 was the second of four, 4.2 the third of seven, 4.3 the fourth of eight.
    assert went_on == [1, 2, 4, 5, 7]


def test_asha_judges_once_at_a_rung():
    others = [trial(id, 1.0, 1.0, 1.0, 1.0) for id in range(1, 9)]
    policy = Asha(min_budget=20, reduction_factor=9)
    verdicts = [policy.verdict(trial(9, *([2.0] * n)), others, LOSS) for n in (1, 2, 3)]
    assert [isinstance(each, Stop) for each in verdicts] == [False, True, False]
    assert policy.verdict(trial(9, 2.0, 1.0), others, LOSS) is None
    assert policy.verdict(trial(9, 2.0, 2.0), others, ACCURACY) is None


def test_a_promoted_trial_is_not_paused_again_where_it_was():
    policy = PromotingAsha(min_budget=10)
    assert isinstance(policy.verdict(trial(1, 1.0), [], LOSS), Pause)
    assert policy.verdict(trial(1, 1.0, pauses=1), [], LOSS) is None
    first = Curve(1, 'running', trial(1, 1.0, 1.0, 1.0).measurements, [10, 20, 30], 100, [10])
    assert policy.verdict(first, [], LOSS) == Pause('reward 1 at step 30, at the rung of 30 steps')


def paused(id: int, *rewards: float) -> Curve:
    return trial(id, *rewards, state='paused', pauses=1)


def promoted(answer: object) -> int | None:
    return answer.trial if isinstance(answer, Promote) else None


def test_the_highest_rung_promotes_first():
    policy = PromotingAsha(min_budget=10)
    low = [paused(id, 1.0) for id in (1, 2, 3)]
    high = [paused(id, 2.0, 2.0, value) for id, value in ((4, 1.2), (5, 1.1), (6, 1.3))]
    assert policy.next([*low, *high], LOSS, REQUEST, True) == Promote(
        5, 'number 1 of 3 trials at the rung of 30 steps'
    )
    # Those above were better than none below; of equals the oldest.
    assert promoted(policy.next([*low, *high[:2]], LOSS, REQUEST, True)) == 1
    assert policy.next(low[:2], LOSS, REQUEST, True) is None


def test_without_room_the_best_of_the_highest_rung_goes_on_until_one_completes():
    policy = PromotingAsha(min_budget=10)
    two = [paused(1, 1.0), paused(2, 2.0, 2.0, 2.0)]
    assert promoted(policy.next(two, LOSS, REQUEST, False)) == 2
    for state in ('waiting', 'running', 'completed'):
        assert policy.next([*two, trial(3, state=state)], LOSS, REQUEST, False) is None
    assert policy.next(two, LOSS, REQUEST, True) is None


def test_brackets_have_the_proportions_of_hyperband():
    policy = Hyperband(min_budget=10)
    lowest = [min(policy.rungs(trial(id)), default=100) for id in range(1, 491)]
    counts = [lowest.count(rung) for rung in (10, 30, 90, 100)]
    # Of 49: 27, 12, 6 and 4.
    assert counts == pytest.approx([270, 120, 60, 40], abs=2)


def test_rivals_are_those_of_the_bracket():
    policy = Hyperband(min_budget=10)
    ids = [id for id in range(1, 30) if min(policy.rungs(trial(id)), default=100) == 10]
    assert policy.next([paused(id, 1.0) for id in ids[:2]], LOSS, REQUEST, True) is None
    three = [paused(id, 1.0) for id in ids[:3]]
    assert promoted(policy.next(three, LOSS, REQUEST, True)) == ids[0]
    other = next(id for id in range(1, 30) if id not in ids)
    assert policy.next([paused(id, 1.0) for id in (*ids[:2], other)], LOSS, REQUEST, True) is None


def test_each_bracket_of_hyperband_completes_a_trial():
    policy = Hyperband(min_budget=10)
    trials = ran(policy, LOSS, num_trials=20, workers=4)
    brackets: dict[float, list[str]] = {}
    for each in trials:
        lowest = min(policy.rungs(trial(each.id)), default=100)
        brackets.setdefault(lowest, []).append(each.state)
    assert set(brackets) == {10, 30, 90, 100}
    assert all('completed' in states for states in brackets.values())
