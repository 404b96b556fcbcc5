"""Pax's verified defects of tuning: spaces, names, metrics and rewards."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.aggregation import MeanOfSteps
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward, Reward
from paxtune.storage.open_study import open_study
from paxtune.study.trial_paths import trial_directory
from tests.factories.studies import ask, states
from tests.factories.tunables import rates

# --- Spaces, names and metrics ---


def test_a_range_is_searched_by_default() -> None:
    # 7
    reward = MetricReward('minimize', 'objective')
    space = pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.floatv(1e-6, 1.0, 'log'))
    Search(reward, Budget(3)).algorithm.resolved(pg.dna_spec(space), 1).check_space(
        pg.dna_spec(space), 1
    )
    with tune(lambda v: v.x + v.y, space=space, num_trials=3, objective='minimize') as study:
        assert states(study) == ['COMPLETED'] * 3


def test_any_value_makes_a_directory(tmp_path: Path) -> None:
    # 8
    texts = ['x' * 300, 'a|b/c\\d\n"e"', '../..', 'naïve ✓', '']
    space = {'a_long_name_' * 10: pg.oneof(['y' * 300]), 'text': pg.oneof(texts)}
    with tune(lambda v: 1.0, space=space, objective='minimize', job_log_dir=tmp_path) as study:
        assert states(study) == ['COMPLETED'] * len(texts)
        directories = [trial_directory(study.directory, trial) for trial in study.trials]
        assert sorted(directories) == sorted((tmp_path / 'trials').iterdir())
        for trial, directory in zip(study.trials, directories, strict=True):
            assert re.fullmatch(r'[A-Za-z0-9._=+-]{4,80}', directory.name)
            record = json.loads((directory / 'trial.json').read_text())
            assert record['decisions'] == trial.decisions
        assert {trial.decisions['text'] for trial in study.trials} == {*texts}


@pytest.mark.parametrize(
    'metric',
    ['a+b/f1(@5).x', Metric('a+b/f1(@5).x'), Metric.eval('f1(@5).x', 'a+b')],
    ids=['name', 'metric', 'eval'],
)
def test_names_are_not_regular_expressions(metric: Any) -> None:
    # 9
    others = ('aab/f1(@5).x', 'a+b/f1@5.x', 'a+b/f1(@5)-x', 'A+B/F1(@5).X', 'a+b/f1(@5).xx')

    def measured(values: Any) -> dict[str, float]:
        return dict.fromkeys(others, -1.0) | {'a+b/f1(@5).x': float(values.x)}

    reward = MetricReward('maximize', metric)
    with tune(measured, space={'x': pg.oneof([1, 2])}, objective=reward) as study:
        assert sorted(trial.reward or 0.0 for trial in study.trials) == [1.0, 2.0]


@pytest.mark.slow
def test_a_reward_of_training_metrics_needs_no_evaluation(tmp_path: Path) -> None:
    # 10
    reward = MetricReward('minimize', Metric.train('loss'))
    made = rates(eval_inputs={}, search__objective=reward)
    with tune(made, job_log_dir=tmp_path) as study:
        for trial in study.trials:
            assert trial.reward == trial.metrics['train/loss']
            assert [each.step for each in trial.measurements] == [2, 4, 6]


def test_a_metric_may_have_any_name() -> None:
    # 10: in Pax, what is called `training_…` counts as a training metric.
    reward = MetricReward('minimize', 'training_cost')
    space = {'x': pg.oneof([1, 2])}
    with tune(lambda v: {'training_cost': v.x}, space=space, objective=reward) as study:
        assert study.best is not None
        assert study.best.reward == 1.0


@pytest.mark.slow
def test_a_measurement_names_the_checkpoint_of_its_step(tmp_path: Path) -> None:
    # 11
    made = rates(1, train__checkpoints__every=4)
    with tune(made, job_log_dir=tmp_path) as study:
        (trial,) = study.trials
        checkpoints = trial_directory(study.directory, trial) / 'checkpoints'
        found = {each.step: each.checkpoint for each in trial.measurements}
        assert found == {2: None, 4: str(checkpoints / '4'), 6: str(checkpoints / '6')}
        assert all(Path(each).is_dir() for each in found.values() if each)


# --- Numbers that are none ---


class Inverse(Reward):
    """One over a metric."""

    def compute(self, metrics: Any) -> float:
        return 1.0 / metrics['x'] if metrics['x'] else math.inf


def test_the_final_reward_is_checked_as_any_other() -> None:
    # 13: each step has a reward, and the mean of the steps has none.
    with open_study(
        None,
        pg.Dict(y=pg.oneof([1, 2])),
        search=Search(Inverse('maximize'), Budget(2), metric_aggregation=MeanOfSteps()),
    ) as study:
        for steps in ([1.0, -1.0], [2.0, 2.0]):
            trial = ask(study)
            for step, x in enumerate(steps, 1):
                trial.report(step, {'x': x})
            try:
                trial.complete()
            except Exception as error:
                assert 'the reward is inf' in str(error)
                trial.fail(str(error))
        assert states(study) == ['INFEASIBLE', 'COMPLETED']
        assert study.best is not None
        assert study.best.id == 2


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('goal', ['minimize', 'maximize'])
def test_a_reward_not_finite_is_infeasible_and_never_the_best(value: float, goal: str) -> None:
    # 13
    def measured(values: Any) -> float:
        return value if values.x == 1 else float(values.x)

    space, reward = {'x': pg.oneof([0, 1, 2])}, MetricReward(goal, 'objective')
    with tune(measured, space=space, objective=reward) as study:
        infeasible = [trial for trial in study.trials if trial.state == 'INFEASIBLE']
        assert [trial.decisions['x'] for trial in infeasible] == [1]
        assert study.best is not None
        assert study.best.reward == (0.0 if goal == 'minimize' else 2.0)
