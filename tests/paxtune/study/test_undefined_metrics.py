"""Metrics that nothing defines at a step, as the AUC of one class. They end no trial."""

import dataclasses
import functools
import math
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyglove as pg
import pytest

import paxtune
from paxtune.config.budget import Budget
from paxtune.objectives.aggregation import BestStep, MeanOfSteps, MetricAggregation
from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.runner import Running
from paxtune.running.tuner import Tuner
from paxtune.schedulers import MedianStopping
from paxtune.storage.open_study import open_study
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from tests.factories.function_studies import SPACE, search
from trainer.experiment import Evaluation, Experiment, TrainLoop
from trainer.inputs import NpzInput
from trainer.layers import Mlp
from trainer.learner import Learner
from trainer.loop.report import Report
from trainer.measures import Auc
from trainer.mesh import Mesh
from trainer.tasks import ClassificationTask

NAN = math.nan
AUC = MetricReward('maximize', 'eval/auc')


class Undefining(FunctionRunner):
    """A runner whose NaN is undefined."""

    def prepare(self, study: Study, trial: RunningTrial) -> Running:
        running = super().prepare(study, trial)

        def reports(should_interrupt: Any) -> Generator[Report, None, None]:
            for each in running(should_interrupt):
                names = {name for name, value in each.metrics.items() if math.isnan(value)}
                yield dataclasses.replace(each, undefined=names)

        return reports


def trial_of(*values: float, **fields: Any) -> Trial:
    """The end of a trial with these values of `eval/auc`, by step."""

    def function(_: Any) -> Iterator[dict[str, float]]:
        for value in values:
            yield {'eval/auc': value, 'eval/loss': 1.0}

    fields = {'objective': AUC, 'budget': Budget(1)} | fields
    study = open_study(None, SPACE, search=search(**fields))
    Tuner(study, Undefining(function)).run()
    return study.trials[0]


@pytest.mark.parametrize(
    'fields',
    [{}, {'objective': MetricReward('maximize', Metric.eval('auc', aggregator='mean'))}],
    ids=['a metric', 'a mean'],
)
def test_a_step_at_which_the_reward_is_undefined_has_none(fields: Any) -> None:
    trial = trial_of(NAN, 0.5, 0.75, NAN, **fields)
    assert (trial.state, trial.reward) == ('COMPLETED', 0.75)
    assert [each.rewards for each in trial.measurements] == [(), (0.5,), (0.75,), ()]


@pytest.mark.parametrize(
    ('aggregation', 'wanted'),
    [(MeanOfSteps(), 0.6), (BestStep(), 0.7), (BestStep('eval/auc', 'min'), 0.5)],
)
def test_an_aggregation_takes_the_steps_with_a_value(
    aggregation: MetricAggregation, wanted: float
) -> None:
    trial = trial_of(NAN, 0.7, 0.5, NAN, metric_aggregation=aggregation)
    assert trial.reward == pytest.approx(wanted)


@pytest.mark.parametrize('aggregation', [None, BestStep(), BestStep('eval/auc', 'max')])
def test_a_reward_that_is_never_defined_is_that_trials_own(
    aggregation: MetricAggregation | None,
) -> None:
    fields = {} if aggregation is None else {'metric_aggregation': aggregation}
    trial = trial_of(NAN, NAN, **fields)
    assert trial.state == 'INFEASIBLE'
    assert not trial.is_failed
    assert 'eval/auc' in str(trial.reason) or 'reward' in str(trial.reason)
    assert 'not measured' not in str(trial.reason)


def test_a_value_may_replace_an_undefined_reward() -> None:
    trial = trial_of(NAN, NAN, objective=MetricReward('maximize', 'eval/auc', reward_for_nan=0.1))
    assert trial.reward == 0.1


def test_a_limit_of_a_metric_that_is_never_defined_is_violated() -> None:
    loss = MetricReward('minimize', 'eval/loss')
    limited = functools.partial(trial_of, objective=loss, limits=[Limit('eval/auc', at_least=0.1)])
    assert limited(NAN, 0.5).state == 'COMPLETED'
    assert limited(NAN, NAN).reason == 'eval/auc is nan, which violates every limit'


def test_early_stopping_skips_steps_without_a_reward() -> None:
    def function(values: Any) -> Iterator[dict[str, float]]:
        for step in range(4):
            yield {'eval/auc': NAN if step % 2 else 0.1 * (values.x + step)}

    fields: Any = {'objective': AUC, 'scheduler': MedianStopping(min_trials=1)}
    study = open_study(None, SPACE, search=search(**fields))
    Tuner(study, Undefining(function)).run()
    assert {trial.state for trial in study.trials} == {'COMPLETED'}
    assert {len(trial.measurements) for trial in study.trials} == {1, 4}


@pytest.mark.slow
def test_a_search_goes_on_where_the_first_evaluation_has_one_class(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    label = ((np.arange(16) >= 8) & (x[:, 0] > 0)).astype(np.int32)
    np.savez(tmp_path / 'a.npz', image=x, label=label)

    def data(is_training: bool, **fields: Any) -> NpzInput:
        path = str(tmp_path / 'a.npz')
        return NpzInput(batch_size=8, is_training=is_training, path=path, **fields)

    experiment = Experiment(
        task=ClassificationTask(Mlp([4], 2), Learner(pg.floatv(1e-3, 1e-1)), metrics=[Auc()]),
        train_input=data(True),
        eval_inputs={'eval': data(False, reset_for_eval=False, eval_loop_num_batches=1)},
        mesh=Mesh(data=1),
        train=TrainLoop(2, Evaluation(1), checkpoints=None),
    )
    study = paxtune.tune(experiment, objective=AUC, num_trials=2, job_log_dir=tmp_path / 's')
    assert [trial.state for trial in study.trials] == ['COMPLETED'] * 2
    assert [[len(each.rewards) for each in trial.measurements] for trial in study.trials] == [
        [0, 1]
    ] * 2
