import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import (
    MedianStopping,
    RankStopping,
    ThresholdStopping,
    TrialCurve,
)
from tests.conformance.scheduler_suite import check_stops, check_study, decision
from tests.properties import examples
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

LOSS = MetricReward(metric='loss', goal='minimize')
ACCURACY = MetricReward(metric='accuracy', goal='maximize')


def measured(*rows: tuple[int, float]) -> list[Measurement]:
    return [Measurement(step, {'opposite': -reward}, (reward,)) for step, reward in rows]


@pytest.mark.parametrize(
    'scheduler',
    [
        # 0 is a threshold between good and bad whichever way the goal is.
        ThresholdStopping(milestones=[[20, 0.0], [60, 0.0]]),
        ThresholdStopping(milestones=[[20, 0.0], [60, 0.0]], metric='loss', goal='minimize'),
        RankStopping(milestones=[[20, 5, 10], [60, 0.5, 0]]),
        RankStopping(milestones=[[30, 0.75, 1]], metric='accuracy', goal='maximize'),
        MedianStopping(),
        MedianStopping(warmup_steps=30, min_trials=2),
        MedianStopping(compare='averages'),
        ThresholdStopping(milestones=[[160, 0.0], [400, 0.0]], unit='tokens', grace_period=0.3),
        RankStopping(milestones=[[10, 5, 10], [30, 0.5, 0]], unit='seconds'),
        MedianStopping(unit='flops', grace_period=0.2),
    ],
)
@pytest.mark.fast(5)
def test_schedulers_conform(scheduler):
    check_stops(scheduler)
    check_study(scheduler)


@pytest.mark.pax('By value')
def test_threshold_stopping_decides_once_a_milestone():
    scheduler = ThresholdStopping(milestones=[[100, 3.0], [200, 2.0]])
    curve = measured((50, 9.0), (120, 3.0), (150, 9.0), (190, 9.0), (200, 2.5))
    stops = [decision(scheduler, curve[:n], [], LOSS) is not None for n in range(1, 6)]
    assert stops == [False, False, False, False, True]


def test_threshold_stopping_skips_milestones_between_two_measurements():
    scheduler = ThresholdStopping(milestones=[[100, 1.0], [200, 5.0]])
    assert decision(scheduler, measured((50, 9.0), (250, 4.0)), [], LOSS) is None


def test_threshold_stopping_maximizes():
    scheduler = ThresholdStopping(milestones=[[100, 0.5]])
    assert decision(scheduler, measured((100, 0.4)), [], ACCURACY) is not None
    assert decision(scheduler, measured((100, 0.5)), [], ACCURACY) is None


@pytest.mark.parametrize(
    ('milestones', 'message'),
    [
        ([], 'at least one'),
        ([[1]], 'rows'),
        ([[1.5, 2.0]], 'whole'),
        ([[-1, 2.0]], 'whole'),
        ([[2, 1.0], [1, 1.0]], 'increase'),
        ([[2, 1.0], [2, 1.0]], 'increase'),
    ],
)
def test_threshold_stopping_checks_its_milestones(milestones, message):
    with pytest.raises(ValueError, match=message):
        ThresholdStopping(milestones=milestones)


def test_median_compares_at_the_same_step_only():
    # At step 20 the others stand at 1, 2 and 3; what they reach later, or elsewhere, is no matter.
    others = [
        measured((10, 9.0), (20, 1.0), (30, 0.1)),
        measured((10, 9.0), (20, 2.0)),
        measured((20, 3.0), (40, 0.0)),
        measured((10, 0.0), (30, 0.0)),
    ]
    scheduler = MedianStopping(min_trials=3)
    assert decision(scheduler, measured((10, 9.0), (20, 2.1)), others, LOSS) == (
        'best reward 2.1 up to step 20 is worse than 2, the median of 3 trials there'
    )
    assert decision(scheduler, measured((10, 9.0), (20, 2.0)), others, LOSS) is None
    assert decision(scheduler, measured((20, 2.1)), others[:2], LOSS) is None


def test_median_takes_the_best_so_far_of_the_trial():
    others = [measured((10, 1.0), (20, 1.0))] * 5
    scheduler = MedianStopping()
    assert decision(scheduler, measured((10, 0.9), (20, 5.0)), others, LOSS) is None
    assert decision(scheduler, measured((10, 1.1), (20, 5.0)), others, LOSS) is not None


@pytest.mark.pax('Median (Pax has')
def test_median_of_averages_is_viziers_rule():
    others = [measured((10, 4.0), (20, 1.0))] * 5
    own = measured((10, 9.0), (20, 2.4))
    assert decision(MedianStopping(compare='averages'), own, others, LOSS) is None
    assert decision(MedianStopping(compare='values'), own, others, LOSS) is not None
    worse = measured((10, 9.0), (20, 2.6))
    assert decision(MedianStopping(compare='averages'), worse, others, LOSS) is not None


def test_median_waits():
    others = [measured((10, 1.0), (20, 1.0))] * 5
    scheduler = MedianStopping(warmup_steps=20)
    assert decision(scheduler, measured((10, 5.0)), others, LOSS) is None
    assert decision(scheduler, measured((10, 5.0), (20, 5.0)), others, LOSS) is not None
    assert decision(scheduler, measured((20, 5.0)), others[:4], LOSS) is None


@pytest.mark.parametrize('fields', [{'warmup_steps': -1}, {'min_trials': 0}])
def test_median_checks_its_fields(fields):
    with pytest.raises(ValueError, match='at least'):
        MedianStopping(**fields)


@pytest.mark.parametrize(
    ('milestones', 'message'),
    [
        ([[10, 3]], r'rows \[step, rank, min_others\]'),
        ([[10, 0, 3]], 'a rank must be'),
        ([[10, -2, 3]], 'a rank must be'),
        ([[10, 1.5, 3]], 'a rank must be'),
        ([[10, 1, -1]], 'min_others'),
        ([[10, 1, 0.5]], 'min_others'),
        ([[20, 1, 0], [10, 1, 0]], 'increase'),
    ],
)
def test_rank_stopping_checks_its_milestones(milestones, message):
    with pytest.raises(ValueError, match=message):
        RankStopping(milestones=milestones)


@pytest.mark.pax('By rank')
def test_rank_stopping_counts_from_the_best():
    scheduler = RankStopping(milestones=[[10, 2, 0]])
    others = [measured((10, value)) for value in (3.0, 1.0, 2.0, 4.0)]
    assert decision(scheduler, measured((10, 2.0)), others, LOSS) is None
    assert decision(scheduler, measured((10, 2.1)), others, LOSS) == (
        'reward 2.1 at step 10 is worse than 2, number 2 of 4 trials at the milestone of step 10'
    )
    assert decision(scheduler, measured((10, 3.0)), others, ACCURACY) is None
    assert decision(scheduler, measured((10, 2.9)), others, ACCURACY) is not None


@pytest.mark.parametrize(
    ('share', 'number'), [(0.01, 1), (0.33, 1), (0.34, 2), (0.67, 3), (0.99, 3)]
)
def test_rank_stopping_takes_shares(share, number):
    # A share of the way from the best of the four to the worst, rounded towards the best.
    others = [measured((10, value)) for value in (4.0, 3.0, 2.0, 1.0)]
    scheduler = RankStopping(milestones=[[10, share, 0]])
    assert decision(scheduler, measured((10, number)), others, LOSS) is None
    reason = decision(scheduler, measured((10, number + 0.5)), others, LOSS)
    assert f'number {number} of 4 trials' in str(reason)


def test_rank_stopping_waits_for_others():
    others = [measured((10, value)) for value in (1.0, 2.0, 3.0)]
    worst = measured((10, 9.0))
    assert decision(RankStopping(milestones=[[10, 1, 3]]), worst, others, LOSS) is not None
    assert decision(RankStopping(milestones=[[10, 1, 4]]), worst, others, LOSS) is None
    assert decision(RankStopping(milestones=[[10, 4, 0]]), worst, others, LOSS) is None
    assert decision(RankStopping(milestones=[[10, 0.5, 0]]), worst, [], LOSS) is None


def test_rank_stopping_compares_at_the_milestone():
    # Each is taken where it first came after step 10 and before step 30; the last never did.
    others = [
        measured((5, 0.0), (10, 1.0), (20, 0.0), (30, 0.0)),
        measured((20, 3.0), (25, 0.0)),
        measured((5, 0.0), (30, 0.0)),
    ]
    scheduler = RankStopping(milestones=[[10, 2, 2], [30, 1, 0]])
    assert decision(scheduler, measured((5, 9.0), (12, 3.0)), others, LOSS) is None
    assert decision(scheduler, measured((5, 9.0), (12, 3.1)), others, LOSS) is not None
    assert decision(scheduler, measured((12, 1.0), (13, 9.0)), others, LOSS) is None


@examples(30)
@given(
    curves=st.lists(st.lists(st.integers(0, 6).map(float), min_size=5, max_size=5), max_size=6),
    rank=st.one_of(st.integers(1, 4), st.floats(0.01, 0.99)),
    min_others=st.integers(0, 3),
    is_loss=st.booleans(),
)
def test_rank_stopping_agrees_with_pyglove(curves, rank, min_others, is_loss):
    milestones = [(2, rank, min_others), (4, 1, 2)]
    theirs = pg.early_stopping.early_stop_by_rank(milestones, maximize=not is_loss)()
    ours = RankStopping(milestones=[list(milestone) for milestone in milestones])
    before: list[list[Measurement]] = []
    for number, values in enumerate(curves):
        trial = pg.tuning.Trial(id=number + 1, dna=pg.DNA(number), created_time=0)
        own: list[Measurement] = []
        for step, value in enumerate(values, 1):
            own.append(Measurement(step, {}, (value,)))
            trial.measurements.append(
                pg.tuning.Measurement(step=step, elapse_secs=0.0, reward=value)
            )
            stops = decision(ours, own, before, LOSS if is_loss else ACCURACY) is not None
            # Ours decides once at a milestone; theirs repeats what it said there.
            if step in (2, 4):
                assert stops == theirs.should_stop_early(trial)
            if stops:
                break
        before.append(own)


def test_a_metric_takes_the_place_of_the_reward():
    own = measured((10, 5.0))
    others = [measured((10, value)) for value in (1.0, 2.0, 3.0)]
    rank = RankStopping(milestones=[[10, 1, 0]], metric='opposite', goal='minimize')
    assert decision(rank, own, others, LOSS) is None
    assert decision(rank, measured((10, 2.9)), others, None) == (
        'opposite -2.9 at step 10 is worse than -3, '
        'number 1 of 3 trials at the milestone of step 10'
    )
    value = ThresholdStopping(milestones=[[10, -6]], metric=Metric('opposite'), goal='minimize')
    assert decision(value, own, [], LOSS) == (
        'opposite -5 at step 10 is worse than -6, the threshold from step 10'
    )


@pytest.mark.parametrize('fields', [{'metric': 'loss'}, {'goal': 'minimize'}])
def test_a_metric_comes_with_its_goal(fields):
    with pytest.raises(ValueError, match='together'):
        ThresholdStopping(milestones=[[10, 1.0]], **fields)


def test_an_ambiguous_metric_is_reported_at_its_path():
    class Holder(Component):
        early_stopping: ThresholdStopping

    metric = Metric('loss')
    scheduler = Holder(
        ThresholdStopping(milestones=[[10, 1.0]], metric=metric, goal='minimize')
    ).early_stopping
    own = [Measurement(10, {'loss:a': 0.0, 'loss:b': 3.0})]
    with pytest.raises(UserError, match=r"^early_stopping\.metric: 'loss' may be loss:a, loss:b"):
        decision(scheduler, own, [], None)
    scheduler.rebind({'metric.aggregator': 'max'})
    assert decision(scheduler, own, [], None) == (
        'max of loss 3 at step 10 is worse than 1.0, the threshold from step 10'
    )


def test_a_milestone_is_reached_at_the_first_value():
    scheduler = ThresholdStopping(milestones=[[10, 1.0]])
    own = [Measurement(10, {}), Measurement(20, {}, (2.0,)), Measurement(30, {}, (2.0,))]
    stops = [decision(scheduler, own[:n], [], LOSS) is not None for n in (1, 2, 3)]
    assert stops == [False, True, False]


def test_median_skips_measurements_without_a_reward():
    others = [[Measurement(10, {}, (1.0,)), Measurement(20, {})] for _ in range(5)]
    scheduler = MedianStopping()
    assert decision(scheduler, measured((10, 5.0)), others, LOSS) is not None
    assert decision(scheduler, measured((20, 5.0)), others, LOSS) is None
    others = [measured((10, 9.0), (20, 1.0))] * 5
    assert decision(scheduler, [*measured((10, 5.0)), Measurement(20, {})], others, LOSS) is None
    assert decision(scheduler, measured((10, 5.0), (20, 5.0)), others, LOSS) is not None


def using(id: int, *rows: tuple[float, float], max_resource: float | None = 100.0) -> TrialCurve:
    """A trial that is measured every 10 steps: its resource, and its reward."""
    measured = [Measurement(10 * n, {}, (value,)) for n, (_, value) in enumerate(rows, start=1)]
    return TrialCurve(id, 'running', measured, [resource for resource, _ in rows], max_resource)


def test_milestones_and_medians_use_the_resource():
    # All are measured at step 10, with different resources.
    fast, slow = using(1, (50.0, 1.0), (100.0, 0.5)), using(2, (5.0, 9.0), (10.0, 8.0))
    value = ThresholdStopping(milestones=[[40, 2.0]], unit='tokens')
    assert value.decide(slow, [], LOSS) is None
    assert value.decide(using(3, (40.0, 3.0)), [], LOSS) is not None
    rank = RankStopping(milestones=[[40, 1, 1]], unit='seconds')
    assert rank.decide(using(3, (40.0, 3.0)), [slow], LOSS) is None
    assert rank.decide(using(3, (40.0, 3.0)), [fast], LOSS) is not None
    median = MedianStopping(min_trials=1, unit='flops')
    # At 60 the fast one stood where it did at 50; the slow one has never been there.
    assert median.decide(using(3, (60.0, 0.9)), [fast, slow], LOSS) is None
    assert median.decide(using(3, (60.0, 1.1)), [fast, slow], LOSS) is not None
    assert median.decide(using(3, (60.0, 1.1)), [slow], LOSS) is None


def test_no_trial_stops_in_the_grace_period():
    scheduler = ThresholdStopping(milestones=[[0, 1.0], [40, 1.0]], grace_period=0.4)
    assert scheduler.decide(using(1, (39.0, 9.0)), [], LOSS) is None
    assert scheduler.decide(using(1, (39.0, 9.0), (40.0, 9.0)), [], LOSS) is not None
    with pytest.raises(ValueError, match='not known'):
        scheduler.decide(using(1, (40.0, 9.0), max_resource=None), [], LOSS)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'grace_period': 1.0}, r'must lie in \[0, 1\)'),
        ({'grace_period': -0.1}, r'must lie in \[0, 1\)'),
        ({'grace_period': 0.1, 'unit': 'seconds'}, 'seconds are not'),
    ],
)
def test_an_invalid_grace_period_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        MedianStopping(**fields)
