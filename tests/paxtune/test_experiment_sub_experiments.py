"""Trials of several experiments, and trials that begin with another one's weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pyglove as pg
import pytest

from paxtune.algorithms import RegularizedEvolution
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.aggregation import BestStep, MeanOfSteps
from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.storage.open_study import open_study
from paxtune.study import trial_import
from paxtune.study.trial_paths import trial_directory
from tests.factories.studies import ask
from tests.factories.tiny import experiment
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


@pytest.mark.pax(3, 'sub_experiments()')
@pytest.mark.slow
def test_each_sub_experiment_has_its_own_directory_and_its_own_metrics(tmp_path: Path) -> None:
    with tune(folds(), job_log_dir=tmp_path) as study:
        for trial in study.trials:
            assert [each.step for each in trial.measurements] == [2, 4, 6]
            directory = trial_directory(study.directory, trial)
            assert (directory / 'long' / 'checkpoints' / '4').is_dir()
            assert (directory / 'short' / 'checkpoints' / '2').is_dir()
            long, short = (trial.metrics[f'eval/log_pplx:{name}'] for name in ('long', 'short'))
            assert long != short
            assert trial.reward == pytest.approx((long + short) / 2)
            checkpoint = trial.measurements[-1].checkpoint
            assert checkpoint == str(directory / 'short' / 'checkpoints' / '2')


@pytest.mark.pax(4)
@pytest.mark.slow
def test_there_is_no_reward_before_all_of_them_have_measured(tmp_path: Path) -> None:
    with tune(folds(budget=Budget(1)), job_log_dir=tmp_path) as study:
        (trial,) = study.trials
        assert [len(each.rewards) for each in trial.measurements] == [0, 0, 1]


@pytest.mark.slow
def test_metrics_of_each_are_folded_alone(tmp_path: Path) -> None:
    with tune(
        folds(budget=Budget(1), metric_aggregation=MeanOfSteps()), job_log_dir=tmp_path
    ) as study:
        (trial,) = study.trials
        first, second, third = trial.measurements
        name = 'eval/log_pplx'
        mean = (first.metrics[f'{name}:long'] + second.metrics[f'{name}:long']) / 2
        assert trial.metrics[f'{name}:long'] == pytest.approx(mean)
        assert trial.metrics[f'{name}:short'] == third.metrics[f'{name}:short']


def test_a_limit_holds_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        'paxtune.algorithms.encoding.sampling._MAX_INFEASIBLE', 20
    )  # For a quick end.
    made = folds(limits=[Limit(metric='num_params', at_most=10)])
    with open_study(tmp_path, made) as study, pytest.raises(UserError, match='num_params'):
        study.suggest()


@pytest.mark.slow
def test_a_wrong_path_in_a_sub_experiment_is_reported_before_any_write(
    tmp_path: Path,
) -> None:
    made = folds()
    made.rebind({'sub_experiments': {'a': {'train.random_sed': 1}}})
    with pytest.raises(UserError, match=r'sub_experiments\.a: train\.random_sed'):
        tune(made, job_log_dir=tmp_path / 'study')
    assert not (tmp_path / 'study' / 'study.db').exists()


@pytest.mark.slow
def test_the_best_step_of_several_needs_a_metric(tmp_path: Path) -> None:
    best = BestStep(metric='eval/log_pplx', mode='min')
    with tune(folds(budget=Budget(1), metric_aggregation=best), job_log_dir=tmp_path) as study:
        (trial,) = study.trials
        name = 'eval/log_pplx:long'
        assert trial.metrics[name] == min(each.metrics.get(name, 9) for each in trial.measurements)


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


@pytest.mark.slow
def test_children_begin_with_their_parents_weights(tmp_path: Path) -> None:
    evolution = RegularizedEvolution(population_size=2, tournament_size=1)
    made = rates(algorithm=evolution, warm_start='parent', budget=Budget(5))
    with tune(made, job_log_dir=tmp_path) as study:
        trials = study.trials
        children = [trial for trial in trials if trial.lineage.parent is not None]
        assert len(children) == 3
        for child in children:
            assert child.lineage.warm_start == child.lineage.parent
            parent = study.trial(child.lineage.parent or 0)
            # Four steps are better than two.
            assert child.measurements[0].rewards[0] < parent.measurements[0].rewards[0]


@pytest.mark.slow
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
@pytest.mark.slow
def test_a_study_with_several_objectives_keeps_a_front(tmp_path: Path) -> None:
    objectives = Objectives(
        [MetricReward('minimize', 'eval/log_pplx'), MetricReward('maximize', 'eval/accuracy')]
    )
    with tune(rates(objective=objectives, budget=Budget(4)), job_log_dir=tmp_path) as study:
        for trial in study.trials:
            metrics = trial.metrics
            assert trial.rewards == (metrics['eval/log_pplx'], metrics['eval/accuracy'])
        front = study.pareto_front
        for trial in study.trials:
            loss, accuracy = trial.rewards
            beaten = any(
                other.rewards[0] <= loss
                and other.rewards[1] >= accuracy
                and other.rewards != trial.rewards
                for other in study.trials
            )
            assert (trial.id in [each.id for each in front]) != beaten
        with pytest.raises(UserError, match='no trial is the best in several objectives'):
            _ = study.best


@pytest.mark.pax('Sweep options: no', 'search_reward')
@pytest.mark.slow
def test_without_a_reward_trials_are_only_measured(tmp_path: Path) -> None:
    made = rates()
    made.rebind({'search': Search(objective=None, budget=Budget(2))})
    with tune(made, job_log_dir=tmp_path) as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 2
        assert study.best is None
        assert study.pareto_front == []
        assert [trial.id for trial in study.candidates] == [1, 2]
        assert all(trial.metrics['eval/log_pplx'] > 0 for trial in study.trials)
