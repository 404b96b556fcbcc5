"""Costs of trials as algorithms see them, with a budget of hours."""

from collections.abc import Sequence

import pyglove as pg
import pytest

from paxtune.algorithms import RandomSearch
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.factories.studies import ask

# Seconds until the first step, and for each step.
START, STEP = 5.0, 2.0


def opened(budget: Budget) -> Study:
    reward = MetricReward('minimize', 'loss')
    search = Search(reward, budget, RandomSearch(), scheduler=None)
    return open_study(None, pg.Dict(x=pg.floatv(0.0, 1.0)), search=search)


def train(study: Study, steps: int, then: str, devices: int = 1) -> None:
    trial = ask(study)
    for step in range(1, steps + 1):
        trial.report(step, {'loss': 1.0})
    phases = {'compilation': START - 1.0, 'initialization': 1.0, 'steps': STEP * steps}
    trial.set_time(START + STEP * steps, devices, phases)
    if then == 'pause':
        trial.pause(steps, 'the rung')
    elif then == 'stop':
        trial.stop('it is slow')
    else:
        study.tell(trial)


def costs(study: Study) -> Sequence[float | None]:
    return [each.cost for each in study.suggester.context(99).observations]


@pytest.mark.parametrize('then', ['pause', 'stop'])
def test_a_trial_that_was_not_trained_to_its_end_costs_what_the_whole_one_would(then: str) -> None:
    with opened(Budget(9, hours=1.0)) as study:
        train(study, 4, 'complete')
        train(study, 1, then)
        assert costs(study) == [START + 4 * STEP] * 2


def test_no_trial_has_a_predicted_cost_before_one_has_ended() -> None:
    with opened(Budget(9, hours=1.0)) as study:
        train(study, 1, 'stop')
        assert costs(study) == [None]


def test_only_completed_trials_have_costs_where_a_decision_sets_their_length() -> None:
    with opened(Budget(9, hours=1.0)) as study:
        train(study, 4, 'complete')
        train(study, 8, 'complete')
        train(study, 1, 'stop')
        ask(study)
        assert costs(study) == [START + 4 * STEP, START + 8 * STEP, None, None]


def test_costs_are_those_of_all_devices_with_a_budget_of_device_hours() -> None:
    with opened(Budget(9, device_hours=1.0)) as study:
        train(study, 4, 'complete', devices=8)
        train(study, 2, 'stop', devices=8)
        assert costs(study) == [8 * (START + 4 * STEP)] * 2


def test_no_trial_has_a_cost_without_a_budget_of_hours() -> None:
    with opened(Budget(9)) as study:
        train(study, 4, 'complete')
        assert costs(study) == [None]
