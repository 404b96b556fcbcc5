import math

import pytest

from paxtune.rewards import MetricReward, NonFiniteRewardError
from trainer.errors import UserError


def test_reward_is_the_metric_of_exactly_that_name():
    reward = MetricReward(metric='eval/loss', goal='minimize')
    assert reward.value({'eval/loss': 2.0, 'eval/loss_2': 1.0, 'xeval/loss': 0.0}) == 2.0


def test_a_missing_metric_is_reported_with_what_there_is():
    with pytest.raises(UserError) as error:
        MetricReward(metric='eval/los', goal='minimize').value({'eval/loss': 2.0, 'a': 1.0})
    assert str(error.value) == (
        "search.reward.metric: 'eval/los' was not measured. Measured: a, eval/loss."
    )


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_raises(value):
    with pytest.raises(NonFiniteRewardError, match=str(value)):
        MetricReward(metric='loss', goal='maximize').value({'loss': value})


@pytest.mark.parametrize(('goal', 'better'), [('minimize', 1.0), ('maximize', 2.0)])
def test_score_follows_the_goal(goal, better):
    assert max([1.0, 2.0], key=MetricReward(metric='x', goal=goal).score) == better


def test_a_goal_has_to_be_given():
    with pytest.raises(TypeError):
        MetricReward(metric='x')
    with pytest.raises(ValueError, match='minimise'):
        MetricReward(metric='x', goal='minimise')
