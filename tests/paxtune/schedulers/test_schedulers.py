import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import ByRank, ByValue, Curve, CurveExtrapolation, MedianStopping
from tests.conformance.policy_suite import check_stops, check_study, verdict
from tests.properties import examples
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

LOSS = MetricReward(metric='loss', goal='minimize')
ACCURACY = MetricReward(metric='accuracy', goal='maximize')


def measured(*rows: tuple[int, float]) -> list[Measurement]:
    return [Measurement(step, {'opposite': -reward}, (reward,)) for step, reward in rows]


@pytest.mark.parametrize(
    'policy',
    [
        # 0 is a threshold between good and bad whichever way the goal is.
        ByValue(gates=[[20, 0.0], [60, 0.0]]),
        ByValue(gates=[[20, 0.0], [60, 0.0]], metric='loss', goal='minimize'),
        ByRank(gates=[[20, 5, 10], [60, 0.5, 0]]),
        ByRank(gates=[[30, 0.75, 1]], metric='accuracy', goal='maximize'),
        MedianStopping(),
        MedianStopping(warmup_steps=30, min_trials=2),
        MedianStopping(compare='averages'),
        CurveExtrapolation(budget=200.0),
        ByValue(gates=[[160, 0.0], [400, 0.0]], unit='tokens', grace=0.3),
        ByRank(gates=[[10, 5, 10], [30, 0.5, 0]], unit='seconds'),
        MedianStopping(unit='flops', grace=0.2),
    ],
)
@pytest.mark.fast(5)
def test_policies_conform(policy):
    check_stops(policy)
    check_study(policy)


def test_by_value_judges_once_a_gate():
    policy = ByValue(gates=[[100, 3.0], [200, 2.0]])
    curve = measured((50, 9.0), (120, 3.0), (150, 9.0), (190, 9.0), (200, 2.5))
    stops = [verdict(policy, curve[:n], [], LOSS) is not None for n in range(1, 6)]
    assert stops == [False, False, False, False, True]


def test_by_value_skips_gates_between_two_measurements():
    policy = ByValue(gates=[[100, 1.0], [200, 5.0]])
    assert verdict(policy, measured((50, 9.0), (250, 4.0)), [], LOSS) is None


def test_by_value_maximizes():
    policy = ByValue(gates=[[100, 0.5]])
    assert verdict(policy, measured((100, 0.4)), [], ACCURACY) is not None
    assert verdict(policy, measured((100, 0.5)), [], ACCURACY) is None


@pytest.mark.parametrize(
    ('gates', 'message'),
    [
        ([], 'at least one'),
        ([[1]], 'rows'),
        ([[1.5, 2.0]], 'whole'),
        ([[-1, 2.0]], 'whole'),
        ([[2, 1.0], [1, 1.0]], 'increase'),
        ([[2, 1.0], [2, 1.0]], 'increase'),
    ],
)
def test_by_value_checks_its_gates(gates, message):
    with pytest.raises(ValueError, match=message):
        ByValue(gates=gates)


def test_median_compares_at_the_same_step_only():
    # At step 20 the others stand at 1, 2 and 3; what they reach later, or elsewhere, is no matter.
    others = [
        measured((10, 9.0), (20, 1.0), (30, 0.1)),
        measured((10, 9.0), (20, 2.0)),
        measured((20, 3.0), (40, 0.0)),
        measured((10, 0.0), (30, 0.0)),
    ]
    policy = MedianStopping(min_trials=3)
    assert verdict(policy, measured((10, 9.0), (20, 2.1)), others, LOSS) == (
        'best reward 2.1 up to step 20 is worse than 2, the median of 3 trials there'
    )
    assert verdict(policy, measured((10, 9.0), (20, 2.0)), others, LOSS) is None
    assert verdict(policy, measured((20, 2.1)), others[:2], LOSS) is None


def test_median_takes_the_best_so_far_of_the_trial():
    others = [measured((10, 1.0), (20, 1.0))] * 5
    policy = MedianStopping()
    assert verdict(policy, measured((10, 0.9), (20, 5.0)), others, LOSS) is None
    assert verdict(policy, measured((10, 1.1), (20, 5.0)), others, LOSS) is not None


def test_median_of_averages_is_viziers_rule():
    others = [measured((10, 4.0), (20, 1.0))] * 5
    own = measured((10, 9.0), (20, 2.4))
    assert verdict(MedianStopping(compare='averages'), own, others, LOSS) is None
    assert verdict(MedianStopping(compare='values'), own, others, LOSS) is not None
    worse = measured((10, 9.0), (20, 2.6))
    assert verdict(MedianStopping(compare='averages'), worse, others, LOSS) is not None


def test_median_waits():
    others = [measured((10, 1.0), (20, 1.0))] * 5
    policy = MedianStopping(warmup_steps=20)
    assert verdict(policy, measured((10, 5.0)), others, LOSS) is None
    assert verdict(policy, measured((10, 5.0), (20, 5.0)), others, LOSS) is not None
    assert verdict(policy, measured((20, 5.0)), others[:4], LOSS) is None


@pytest.mark.parametrize('fields', [{'warmup_steps': -1}, {'min_trials': 0}])
def test_median_checks_its_fields(fields):
    with pytest.raises(ValueError, match='at least'):
        MedianStopping(**fields)


@pytest.mark.parametrize(
    ('gates', 'message'),
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
def test_by_rank_checks_its_gates(gates, message):
    with pytest.raises(ValueError, match=message):
        ByRank(gates=gates)


def test_by_rank_counts_from_the_best():
    policy = ByRank(gates=[[10, 2, 0]])
    others = [measured((10, value)) for value in (3.0, 1.0, 2.0)]
    assert verdict(policy, measured((10, 2.0)), others, LOSS) is None
    assert verdict(policy, measured((10, 2.1)), others, LOSS) == (
        'reward 2.1 at step 10 is worse than 2, number 2 of 3 trials at the gate of step 10'
    )
    assert verdict(policy, measured((10, 2.0)), others, ACCURACY) is None
    assert verdict(policy, measured((10, 1.9)), others, ACCURACY) is not None


@pytest.mark.parametrize(
    ('share', 'number'), [(0.01, 1), (0.33, 1), (0.34, 2), (0.67, 3), (0.99, 3)]
)
def test_by_rank_takes_shares(share, number):
    # Of the way from the best of the four to the worst, rounded towards the best.
    others = [measured((10, value)) for value in (4.0, 3.0, 2.0, 1.0)]
    policy = ByRank(gates=[[10, share, 0]])
    assert verdict(policy, measured((10, number)), others, LOSS) is None
    reason = verdict(policy, measured((10, number + 0.5)), others, LOSS)
    assert f'number {number} of 4 trials' in str(reason)


def test_by_rank_waits_for_others():
    others = [measured((10, value)) for value in (1.0, 2.0, 3.0)]
    worst = measured((10, 9.0))
    assert verdict(ByRank(gates=[[10, 1, 3]]), worst, others, LOSS) is not None
    assert verdict(ByRank(gates=[[10, 1, 4]]), worst, others, LOSS) is None
    assert verdict(ByRank(gates=[[10, 4, 0]]), worst, others, LOSS) is None
    assert verdict(ByRank(gates=[[10, 0.5, 0]]), worst, [], LOSS) is None


def test_by_rank_compares_at_the_gate():
    # Each is taken where it first came after step 10 and before step 30; the last never did.
    others = [
        measured((5, 0.0), (10, 1.0), (20, 0.0), (30, 0.0)),
        measured((20, 3.0), (25, 0.0)),
        measured((5, 0.0), (30, 0.0)),
    ]
    policy = ByRank(gates=[[10, 2, 2], [30, 1, 0]])
    assert verdict(policy, measured((5, 9.0), (12, 3.0)), others, LOSS) is None
    assert verdict(policy, measured((5, 9.0), (12, 3.1)), others, LOSS) is not None
    assert verdict(policy, measured((12, 1.0), (13, 9.0)), others, LOSS) is None


@examples(30)
@given(
    curves=st.lists(st.lists(st.integers(0, 6).map(float), min_size=5, max_size=5), max_size=6),
    rank=st.one_of(st.integers(1, 4), st.floats(0.01, 0.99)),
    min_others=st.integers(0, 3),
    is_loss=st.booleans(),
)
def test_by_rank_stops_whom_pyglove_stops(curves, rank, min_others, is_loss):
    gates = [(2, rank, min_others), (4, 1, 2)]
    theirs = pg.early_stopping.early_stop_by_rank(gates, maximize=not is_loss)()
    ours = ByRank(gates=[list(gate) for gate in gates])
    before: list[list[Measurement]] = []
    for number, values in enumerate(curves):
        trial = pg.tuning.Trial(id=number + 1, dna=pg.DNA(number), created_time=0)
        own: list[Measurement] = []
        for step, value in enumerate(values, 1):
            own.append(Measurement(step, {}, (value,)))
            trial.measurements.append(
                pg.tuning.Measurement(step=step, elapse_secs=0.0, reward=value)
            )
            stops = verdict(ours, own, before, LOSS if is_loss else ACCURACY) is not None
            # Ours judges once at a gate; theirs repeats what it said there.
            if step in (2, 4):
                assert stops == theirs.should_stop_early(trial)
            if stops:
                break
        before.append(own)


def test_a_metric_takes_the_place_of_the_reward():
    own = measured((10, 5.0))
    others = [measured((10, value)) for value in (1.0, 2.0, 3.0)]
    rank = ByRank(gates=[[10, 1, 0]], metric='opposite', goal='minimize')
    assert verdict(rank, own, others, LOSS) is None
    assert verdict(rank, measured((10, 2.9)), others, None) == (
        'opposite -2.9 at step 10 is worse than -3, number 1 of 3 trials at the gate of step 10'
    )
    value = ByValue(gates=[[10, -6]], metric=Metric('opposite'), goal='minimize')
    assert verdict(value, own, [], LOSS) == (
        'opposite -5 at step 10 is worse than -6, the threshold from step 10'
    )


@pytest.mark.parametrize('fields', [{'metric': 'loss'}, {'goal': 'minimize'}])
def test_a_metric_comes_with_its_goal(fields):
    with pytest.raises(ValueError, match='together'):
        ByValue(gates=[[10, 1.0]], **fields)


def test_an_ambiguous_metric_is_reported_at_its_path():
    class Holder(Component):
        early_stopping: ByValue

    metric = Metric('loss')
    policy = Holder(ByValue(gates=[[10, 1.0]], metric=metric, goal='minimize')).early_stopping
    own = [Measurement(10, {'loss:a': 0.0, 'loss:b': 3.0})]
    with pytest.raises(UserError, match=r"^early_stopping\.metric: 'loss' may be loss:a, loss:b"):
        verdict(policy, own, [], None)
    policy.rebind({'metric.aggregator': 'max'})
    assert verdict(policy, own, [], None) == (
        'max of loss 3 at step 10 is worse than 1.0, the threshold from step 10'
    )


def test_a_gate_is_passed_where_there_is_something_to_go_by():
    policy = ByValue(gates=[[10, 1.0]])
    own = [Measurement(10, {}), Measurement(20, {}, (2.0,)), Measurement(30, {}, (2.0,))]
    stops = [verdict(policy, own[:n], [], LOSS) is not None for n in (1, 2, 3)]
    assert stops == [False, True, False]


def test_median_passes_over_measurements_without_a_reward():
    others = [[Measurement(10, {}, (1.0,)), Measurement(20, {})] for _ in range(5)]
    policy = MedianStopping()
    assert verdict(policy, measured((10, 5.0)), others, LOSS) is not None
    assert verdict(policy, measured((20, 5.0)), others, LOSS) is None
    others = [measured((10, 9.0), (20, 1.0))] * 5
    assert verdict(policy, [*measured((10, 5.0)), Measurement(20, {})], others, LOSS) is None
    assert verdict(policy, measured((10, 5.0), (20, 5.0)), others, LOSS) is not None


def spending(id: int, *rows: tuple[float, float], budget: float | None = 100.0) -> Curve:
    """A trial that is measured every 10 steps: what it had spent, and its reward."""
    measured = [Measurement(10 * n, {}, (value,)) for n, (_, value) in enumerate(rows, start=1)]
    return Curve(id, 'running', measured, [spent for spent, _ in rows], budget)


def test_gates_and_medians_go_by_what_was_spent():
    # All are measured at step 10, where they have spent different amounts.
    fast, slow = spending(1, (50.0, 1.0), (100.0, 0.5)), spending(2, (5.0, 9.0), (10.0, 8.0))
    value = ByValue(gates=[[40, 2.0]], unit='tokens')
    assert value.verdict(slow, [], LOSS) is None
    assert value.verdict(spending(3, (40.0, 3.0)), [], LOSS) is not None
    rank = ByRank(gates=[[40, 1, 1]], unit='seconds')
    assert rank.verdict(spending(3, (40.0, 3.0)), [slow], LOSS) is None
    assert rank.verdict(spending(3, (40.0, 3.0)), [fast], LOSS) is not None
    median = MedianStopping(min_trials=1, unit='flops')
    # At 60 the fast one stood where it did at 50; the slow one has never been there.
    assert median.verdict(spending(3, (60.0, 0.9)), [fast, slow], LOSS) is None
    assert median.verdict(spending(3, (60.0, 1.1)), [fast, slow], LOSS) is not None
    assert median.verdict(spending(3, (60.0, 1.1)), [slow], LOSS) is None


def test_nobody_is_judged_within_the_grace():
    policy = ByValue(gates=[[0, 1.0], [40, 1.0]], grace=0.4)
    assert policy.verdict(spending(1, (39.0, 9.0)), [], LOSS) is None
    assert policy.verdict(spending(1, (39.0, 9.0), (40.0, 9.0)), [], LOSS) is not None
    with pytest.raises(ValueError, match='nobody knows'):
        policy.verdict(spending(1, (40.0, 9.0), budget=None), [], LOSS)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'grace': 1.0}, 'from 0 to below 1'),
        ({'grace': -0.1}, 'from 0 to below 1'),
        ({'grace': 0.1, 'unit': 'seconds'}, 'seconds are not'),
    ],
)
def test_an_impossible_grace_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        MedianStopping(**fields)
