"""Trials of several experiments, and trials that begin with another one's weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.aggregation import BestStep
from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.storage.open_study import open_study
from paxtune.study import trial_import
from paxtune.study.trial_paths import trial_directory
from tests.factories.studies import ask
from tests.factories.tiny import experiment
from tests.factories.tunables import HIDDEN
from trainer.symbolic.errors import UserError


def folds(reward: Any = None, **search: Any) -> Tunable:
    """Two sub-experiments of different lengths."""
    mean = MetricReward('minimize', Metric('eval/log_pplx', aggregator='mean'))
    made = Tunable(
        **dict(experiment(num_steps=4).sym_init_args),
        search=Search(**{'objective': reward or mean, 'budget': Budget(2), **search}),
        sub_experiments={
            'long': {},
            'short': {'train.num_train_steps': 2, 'train.random_seed': 7},
        },
    )
    made.rebind({'task.learner.learning_rate': pg.floatv(1e-3, 1e-1, 'log')})
    return made


@pytest.mark.pax(3, 4, 'sub_experiments()')
@pytest.mark.slow
def test_each_sub_experiment_has_its_own_directory_and_metrics_and_all_make_the_reward(
    tmp_path: Path,
) -> None:
    with tune(folds(budget=Budget(1)), job_log_dir=tmp_path) as study:
        (trial,) = study.trials
        assert [each.step for each in trial.measurements] == [2, 4, 6]
        assert [len(each.rewards) for each in trial.measurements] == [0, 0, 1]
        directory = trial_directory(study.directory, trial)
        assert (directory / 'long' / 'checkpoints' / '4').is_dir()
        assert (directory / 'short' / 'checkpoints' / '2').is_dir()
        long, short = (trial.metrics[f'eval/log_pplx:{name}'] for name in ('long', 'short'))
        assert long != short
        assert trial.reward == pytest.approx((long + short) / 2)
        checkpoint = trial.measurements[-1].checkpoint
        assert checkpoint == str(directory / 'short' / 'checkpoints' / '2')


def test_a_limit_holds_for_each() -> None:
    made = folds(limits=[Limit(metric='num_params', at_most=10_000)])
    rate = {'task.learner.learning_rate': 0.01}
    with open_study(None, made) as study:
        decided = study.space.parse(rate)
        assert study.suggester.feasibility.why_infeasible(decided) is None
    made.rebind({'sub_experiments.short': {HIDDEN: 1024}})
    with open_study(None, made) as study:
        reason = study.suggester.feasibility.why_infeasible(decided)
    assert 'num_params' in str(reason)


@pytest.mark.slow
def test_a_wrong_path_in_a_sub_experiment_is_reported_before_any_write(
    tmp_path: Path,
) -> None:
    made = folds()
    made.rebind({'sub_experiments': {'a': {'train.random_sed': 1}}})
    with pytest.raises(UserError, match=r'sub_experiments\.a: train\.random_sed'):
        tune(made, job_log_dir=tmp_path / 'study')
    assert not (tmp_path / 'study' / 'study.db').exists()


def test_a_part_of_them_never_makes_a_reward(tmp_path: Path) -> None:
    """However a trial ends, and wherever it is carried to."""
    made = folds()
    with open_study(tmp_path / 'a', made) as study, open_study(tmp_path / 'b', made) as other:
        early, late = ask(study), None
        early.report(2, {'eval/log_pplx:long': 1.0})
        early.conclude('by hand', metrics={'eval/accuracy:long': 1.0})
        assert early.view.state == 'INFEASIBLE'
        late = ask(study)
        late.report(2, {'eval/log_pplx:long': 10.0})
        late.report(6, {'eval/log_pplx:short': 2.0})
        late.stop('by hand')
        assert late.view.reward == 6.0
        assert trial_import.fork(study, other) == 2
        assert other.trials[1].reward == 6.0
        assert [each.rewards for each in other.trials[1].measurements] == [(), (6.0,)]


def test_the_best_step_needs_a_metric_with_sub_experiments() -> None:
    with pytest.raises(ValueError, match=r'metric_aggregation: .* name a metric'):
        folds(metric_aggregation=BestStep())


# --- Warm starts ---


def rates(**search: Any) -> Tunable:
    made = Tunable(
        **dict(experiment(num_steps=2).sym_init_args),
        search=Search(
            **{
                'objective': MetricReward('minimize', 'eval/log_pplx'),
                'budget': Budget(3),
                **search,
            }
        ),
    )
    made.rebind({'task.learner.learning_rate': pg.floatv(1e-3, 1e-1, 'log')})
    return made


def test_an_added_trial_may_begin_with_anothers_weights(tmp_path: Path) -> None:
    with tune(rates(budget=Budget(1)), job_log_dir=tmp_path) as study:
        (first,) = study.trials
        study.add(first.decisions, warm_start=1)
    with tune(rates(budget=Budget(2)), job_log_dir=tmp_path) as study:
        first, second = study.trials
        assert (second.lineage.origin, second.lineage.warm_start) == ('added', 1)
        assert second.decisions == first.decisions
        assert np.isfinite(second.reward or np.nan)
        assert (second.reward or 0.0) < (first.reward or 0.0)
        assert study.retry(2).lineage.warm_start == 1


# --- Several objectives ---


@pytest.mark.pax('A study of several')
def test_a_study_with_several_objectives_keeps_a_front() -> None:
    objectives = Objectives(
        [MetricReward('minimize', 'loss'), MetricReward('maximize', 'accuracy')]
    )
    points = [(0.5, 0.5), (0.25, 0.25), (0.75, 0.25), (0.125, 0.5), (1.0, 0.75)]
    with tune(
        lambda x: dict(zip(('loss', 'accuracy'), points[x], strict=True)),
        space={'x': pg.oneof(list(range(5)))},
        objective=objectives,
        algorithm='grid',
    ) as study:
        assert [trial.rewards for trial in study.trials] == points
        assert [trial.id for trial in study.pareto_front] == [4, 5]
        with pytest.raises(UserError, match='no trial is the best in several objectives'):
            _ = study.best


@pytest.mark.pax('Sweep options: no', 'search_reward')
def test_without_a_reward_trials_are_only_measured(tmp_path: Path) -> None:
    made = rates()
    made.rebind({'search': Search(objective=None, budget=Budget(2))})
    with tune(made, job_log_dir=tmp_path) as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 2
        assert study.best is None
        assert study.pareto_front == []
        assert [trial.id for trial in study.candidates] == [1, 2]
        assert all(trial.metrics['eval/log_pplx'] > 0 for trial in study.trials)
