import pytest

from paxtune.measurement import Measurement
from paxtune.policies import ByValue, MedianStopping
from paxtune.rewards import MetricReward
from tests.conformance.early_stopping_suite import check_policy

LOSS = MetricReward(metric='loss', goal='minimize')
ACCURACY = MetricReward(metric='accuracy', goal='maximize')


def measured(*rows: tuple[int, float]) -> list[Measurement]:
    return [Measurement(step, {}, reward) for step, reward in rows]


@pytest.mark.parametrize(
    'policy',
    [
        # 0 is a threshold between good and bad whichever way the goal is.
        ByValue(gates=[[20, 0.0], [60, 0.0]]),
        MedianStopping(),
        MedianStopping(warmup_steps=30, min_trials=2),
        MedianStopping(compare='averages'),
    ],
)
def test_policies_conform(policy):
    check_policy(policy)


def test_by_value_judges_once_a_gate():
    policy = ByValue(gates=[[100, 3.0], [200, 2.0]])
    curve = measured((50, 9.0), (120, 3.0), (150, 9.0), (190, 9.0), (200, 2.5))
    stops = [policy.should_stop(curve[:n], [], LOSS) is not None for n in range(1, 6)]
    assert stops == [False, False, False, False, True]


def test_by_value_skips_gates_between_two_measurements():
    policy = ByValue(gates=[[100, 1.0], [200, 5.0]])
    assert policy.should_stop(measured((50, 9.0), (250, 4.0)), [], LOSS) is None


def test_by_value_maximizes():
    policy = ByValue(gates=[[100, 0.5]])
    assert policy.should_stop(measured((100, 0.4)), [], ACCURACY) is not None
    assert policy.should_stop(measured((100, 0.5)), [], ACCURACY) is None


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
    assert policy.should_stop(measured((10, 9.0), (20, 2.1)), others, LOSS) == (
        'best reward 2.1 up to step 20 is worse than 2, the median of 3 trials there'
    )
    assert policy.should_stop(measured((10, 9.0), (20, 2.0)), others, LOSS) is None
    assert policy.should_stop(measured((20, 2.1)), others[:2], LOSS) is None


def test_median_takes_the_best_so_far_of_the_trial():
    others = [measured((10, 1.0), (20, 1.0))] * 5
    policy = MedianStopping()
    assert policy.should_stop(measured((10, 0.9), (20, 5.0)), others, LOSS) is None
    assert policy.should_stop(measured((10, 1.1), (20, 5.0)), others, LOSS) is not None


def test_median_of_averages_is_viziers_rule():
    others = [measured((10, 4.0), (20, 1.0))] * 5
    own = measured((10, 9.0), (20, 2.4))
    assert MedianStopping(compare='averages').should_stop(own, others, LOSS) is None
    assert MedianStopping(compare='values').should_stop(own, others, LOSS) is not None
    worse = measured((10, 9.0), (20, 2.6))
    assert MedianStopping(compare='averages').should_stop(worse, others, LOSS) is not None


def test_median_waits():
    others = [measured((10, 1.0), (20, 1.0))] * 5
    policy = MedianStopping(warmup_steps=20)
    assert policy.should_stop(measured((10, 5.0)), others, LOSS) is None
    assert policy.should_stop(measured((10, 5.0), (20, 5.0)), others, LOSS) is not None
    assert policy.should_stop(measured((20, 5.0)), others[:4], LOSS) is None


@pytest.mark.parametrize('fields', [{'warmup_steps': -1}, {'min_trials': 0}])
def test_median_checks_its_fields(fields):
    with pytest.raises(ValueError, match='at least'):
        MedianStopping(**fields)
