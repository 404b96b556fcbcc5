import math

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.objectives.metrics import Metric, MissingMetricError
from paxtune.objectives.rewards import (
    MetricReward,
    MnasHard,
    MnasSoft,
    NonFiniteRewardError,
    Objectives,
    Reward,
    TunasAbsolute,
    WeightedSum,
    search_rewards,
)
from trainer.symbolic.component import Component

LOSS = MetricReward('minimize', 'loss')
AT_COST = (TunasAbsolute, MnasHard, MnasSoft)


class Holder(Component):
    reward: Reward | Objectives


@pytest.mark.pax('Names are regular')
def test_metric_rewards_match_names_exactly():
    reward = MetricReward('minimize', 'eval/loss')
    assert reward.value({'eval/loss': 2.0, 'eval/loss_2': 1.0, 'xeval/loss': 0.0}) == 2.0


def test_rewards_accept_metric_objects():
    reward = MetricReward('minimize', Metric('eval/loss', aggregator='max'))
    assert reward.value({'eval/loss:a': 2.0, 'eval/loss:b': 3.0}) == 3.0
    assert reward.label == 'max of eval/loss'


@pytest.mark.parametrize(
    ('reward', 'path'),
    [
        (MetricReward('minimize', 'a'), 'reward.metric'),
        (MetricReward('minimize', Metric('a')), 'reward.metric'),
        (WeightedSum('minimize', ['loss', 'a'], [1, 1]), 'reward.metrics[1]'),
        (TunasAbsolute('a', 'loss', 1.0), 'reward.metric'),
        (TunasAbsolute('loss', 'a', 1.0), 'reward.cost'),
        (Objectives([LOSS, MetricReward('minimize', 'a')]), 'reward.rewards[1].metric'),
    ],
)
def test_missing_metrics_are_reported_with_their_path(reward, path):
    held = Holder(reward)
    with pytest.raises(MissingMetricError) as error:
        search_rewards(held.reward)[-1].value({'loss': 2.0})
    assert str(error.value) == f"{path}: 'a' is not measured. Measured: loss."


@pytest.mark.pax('reward_for_nan')
@pytest.mark.parametrize(
    'reward',
    [
        LOSS,
        WeightedSum('maximize', ['loss'], [-1.0]),
        *(each('loss', 'cost', 2.0) for each in AT_COST),
    ],
)
def test_non_finite_rewards_raise(reward):
    instead = reward.clone(override={'reward_for_nan': 7})
    metrics = {'loss': 1.0, 'cost': 1.0}
    assert instead.value(metrics) == reward.value(metrics)
    for metric in reward.metrics:
        with pytest.raises(NonFiniteRewardError, match='nan'):
            reward.value({**metrics, metric.name: math.nan})
        assert instead.value({**metrics, metric.name: math.nan}) == 7.0
        for value in (math.inf, -math.inf):
            for each in (reward, instead):
                with pytest.raises(NonFiniteRewardError):
                    each.value({**metrics, metric.name: value})


def test_reward_for_nan_must_be_finite():
    with pytest.raises(ValueError, match='reward_for_nan must be finite: inf'):
        MetricReward('minimize', 'loss', reward_for_nan=math.inf)


@pytest.mark.pax('SingleObjective')
@pytest.mark.parametrize(('goal', 'better'), [('minimize', 1.0), ('maximize', 2.0)])
def test_score_follows_the_goal(goal, better):
    assert max([1.0, 2.0], key=MetricReward(goal, 'x').score) == better


def test_a_goal_is_required():
    with pytest.raises(TypeError):
        MetricReward(metric='x')
    with pytest.raises(ValueError, match='minimise'):
        MetricReward('minimise', 'x')


@pytest.mark.pax('MultiObjective')
@pytest.mark.parametrize(
    ('reward', 'metrics'),
    [
        (LOSS, ['loss']),
        (WeightedSum('minimize', ['a', Metric('b')], [1, 2]), ['a', 'b']),
        (MnasSoft('a', Metric('b'), 1.0), ['a', 'b']),
    ],
)
def test_rewards_list_their_metrics(reward, metrics):
    assert all(isinstance(metric, Metric) for metric in reward.metrics)
    assert [metric.label for metric in reward.metrics] == metrics


numbers = st.floats(-1e6, 1e6)


@pytest.mark.pax('weighted_sum_reward(…)', 'WeightedSumAggregator')
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4))
def test_weighted_sum_equals_pax(rows):
    weights, values = zip(*rows, strict=True)
    names = [f'm{i}' for i in range(len(rows))]
    if not any(weights):
        with pytest.raises(ValueError, match='not all 0'):
            WeightedSum('maximize', names, list(weights))
        return
    reward = WeightedSum('maximize', names, list(weights))
    made = reward.value(dict(zip(names, values, strict=True)))
    total = 0.0
    for weight, value in rows:  # From Python 3.12 on, `sum` rounds otherwise.
        total += weight * value
    assert made == total / sum(abs(w) for w in weights)
    assert abs(made) <= max(map(abs, values)) * (1 + 1e-9)


@pytest.mark.parametrize(
    ('metrics', 'weights', 'message'),
    [
        (['a', 'b'], [1.0], '1 weights, 2 metrics'),
        ([], [], 'not all 0'),
        (['a', 'b'], [0.0, 0.0], 'not all 0'),
        (['a', 'b'], [1.0, math.nan], 'finite'),
        (['a', 'b'], [1.0, math.inf], 'finite'),
    ],
)
def test_weighted_sum_checks_its_weights(metrics, weights, message):
    with pytest.raises(ValueError, match=message):
        WeightedSum('minimize', metrics, weights)


@pytest.mark.pax('neural_architecture_search(…)', 'TunasAbsolute', 'MnasHard')
@pytest.mark.parametrize(
    ('reward', 'expected'),
    [
        (TunasAbsolute('q', 'c', 100.0), [0.8 - 0.07 * 0.5, 0.8, 0.8 - 0.07 * 1.0]),
        (MnasHard('q', 'c', 100.0), [0.8, 0.8, 0.8 * 2**-0.07]),
        (MnasSoft('q', 'c', 100.0), [0.8 * 0.5**-0.07, 0.8, 0.8 * 2**-0.07]),
        (MnasHard('q', 'c', 100.0, -1), [0.8, 0.8, 0.4]),
        (MnasSoft('q', 'c', 100.0, 0), [0.8, 0.8, 0.8]),
    ],
)
def test_qualities_at_a_cost(reward, expected):
    made = [reward.value({'q': 0.8, 'c': cost}) for cost in (50.0, 100.0, 200.0)]
    assert made == pytest.approx(expected, rel=1e-12)
    assert reward.goal == 'maximize'


@pytest.mark.parametrize('kind', AT_COST)
@pytest.mark.parametrize('cost', [0.0, -0.0, -3.0, math.inf, -math.inf])
def test_invalid_costs_make_the_reward_undefined(kind, cost):
    # Pax's 13th defect: a complex number, or a ZeroDivisionError.
    with pytest.raises(
        NonFiniteRewardError, match=r'^c is .*: a cost must be above 0, and finite$'
    ):
        kind('q', 'c', 1.0).value({'q': 1.0, 'c': cost})


@pytest.mark.parametrize('kind', [MnasHard, MnasSoft])
def test_negative_qualities_make_the_reward_undefined(kind):
    with pytest.raises(
        NonFiniteRewardError, match=r'^q is -0.5: Mnas.* requires a metric of at least 0$'
    ):
        kind('q', 'c', 1.0).value({'q': -0.5, 'c': 1.0})


@given(
    st.sampled_from(AT_COST),
    st.floats(0, 1e3),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    st.floats(-400, 0),
)
def test_every_cost_has_a_reward_or_an_error(kind, quality, cost, target, exponent):
    reward = kind('q', 'c', target, exponent)
    try:
        made = reward.value({'q': quality, 'c': cost})
    except NonFiniteRewardError:
        return
    assert isinstance(made, float) and math.isfinite(made)


@given(
    st.sampled_from(AT_COST), st.floats(0, 1), st.lists(st.floats(1, 1e9), min_size=2, max_size=4)
)
def test_rewards_never_increase_beyond_the_cost_target(kind, quality, costs):
    reward = kind('q', 'c', 1.0)
    made = [reward.score(reward.value({'q': quality, 'c': cost})) for cost in sorted(costs)]
    assert made == sorted(made, reverse=True)


@pytest.mark.parametrize('kind', AT_COST)
@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'cost_target': 0.0}, 'cost_target must be above 0'),
        ({'cost_target': -1.0}, 'cost_target must be above 0'),
        ({'cost_target': math.inf}, 'cost_target must be above 0'),
        ({'exponent': 0.1}, 'exponent must be finite, and at most 0'),
        ({'exponent': math.nan}, 'exponent must be finite, and at most 0'),
        ({'exponent': -math.inf}, 'exponent must be finite, and at most 0'),
        ({'goal': 'minimize'}, 'must be maximized'),
    ],
)
def test_invalid_rewards_at_a_cost_are_rejected(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(**{'metric': 'q', 'cost': 'c', 'cost_target': 1.0, **fields})


def test_objectives():
    rewards = [LOSS, MetricReward('minimize', 'num_params')]
    objectives = Objectives(rewards)
    assert pg.eq(search_rewards(objectives), rewards)
    assert pg.eq(search_rewards(LOSS), [LOSS])
    assert search_rewards(None) == []
    for wrong, message in (
        ([], 'two rewards: 0'),
        ([LOSS], 'two rewards: 1'),
        ([LOSS, LOSS], 'differ: loss, loss'),
    ):
        with pytest.raises(ValueError, match=message):
            Objectives(wrong)


@pytest.mark.parametrize(
    ('reward', 'label'),
    [
        (LOSS, 'loss'),
        (WeightedSum('minimize', ['a', Metric('b')], [1, -0.5]), '1 × a + -0.5 × b'),
        (TunasAbsolute('q', Metric.num_params(), 1.0), 'TunasAbsolute(q, num_params)'),
    ],
)
def test_labels(reward, label):
    assert reward.label == label
