"""Trials of adapters that begin with the weights of other trials."""

from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import train
from paxtune.algorithms import Grid, RandomSearch, RegularizedEvolution
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.rewards import MetricReward
from paxtune.running.trial_spec import experiments
from paxtune.schedulers import PopulationBasedTraining
from tests.factories.runs import measured
from tests.factories.tiny import experiment
from trainer.layers.lora import LoRA
from trainer.runtime.metric_writer import read_metrics
from trainer.warm_start_rules import Inheritance, WarmStart

TARGETS = [r'.*\.(query|output|up|down)']
STILL = {'task.learner.learning_rate': 0.0}


@pytest.fixture(scope='module')
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp('base')
    measured(experiment(num_steps=2), directory)
    return str(directory / 'checkpoints')


def adapted(base: str | None, num_trials: int = 3, **search: Any) -> Tunable:
    """A search over adapters, whose children do not learn."""
    fields = {'budget': Budget(num_trials), 'algorithm': RandomSearch(), **search}
    made = Tunable(
        **dict(experiment(num_steps=4, train__init_from_checkpoint=base).sym_init_args),
        search=Search(MetricReward('minimize', 'eval/log_pplx'), **fields),
    )
    made.rebind({'task.adapters': LoRA(2, targets=TARGETS)})
    return made


def evolved(base: str | None, **fields: Any) -> Tunable:
    evolution = RegularizedEvolution(population_size=1, tournament_size=1)
    fields = {'num_trials': 2, 'warm_start': 'parent', 'child_overrides': STILL, **fields}
    return adapted(base, algorithm=evolution, **fields)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('path', 'values'), [('task.adapters.rank', [2, 4]), ('train.summary_interval_steps', [1, 2])]
)
def test_children_begin_with_the_adapters_of_their_parents(
    path: str, values: list[int], base: str, tmp_path: Path
) -> None:
    with tune(evolved(base).rebind({path: pg.oneof(values)}), job_log_dir=tmp_path) as study:
        one, other = study.trials
        assert other.lineage.warm_start == 1
        begun = experiments(study, other)[''].train.init_from_checkpoint
        assert isinstance(begun, Inheritance) and begun.base == base
        # A smaller rank drops columns.
        is_smaller = 'rank' in path and other.decisions[path] < one.decisions[path]
        assert (other.reward == pytest.approx(one.reward, abs=1e-5)) != is_smaller
    again = tmp_path / 'again'
    flags = f'--study_dir={tmp_path}', '--trial=2', f'--job_log_dir={again}'
    assert train.main(flags) == 0
    assert read_metrics(again / 'metrics.jsonl')[-1]['eval/log_pplx'] == other.reward


@pytest.mark.slow
def test_children_without_a_source_of_frozen_parameters_begin_anew_and_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space = {'train.summary_interval_steps': pg.oneof([1, 2])}
    with tune(evolved(None).rebind(space), job_log_dir=tmp_path) as study:
        assert [each.lineage.warm_start for each in study.trials] == [None, None]
    assert 'Trial 2 does not begin with the weights of trial 1: train.init_from' in caplog.text
    assert 'give base the source of their frozen parameters' in caplog.text


@pytest.mark.slow
def test_an_added_trial_begins_with_the_adapters_of_another(base: str, tmp_path: Path) -> None:
    made = adapted(base, num_trials=1, algorithm=Grid())
    made.rebind({'task.learner.learning_rate': pg.oneof([0.02, 0.0])})
    with tune(made, job_log_dir=tmp_path) as study:
        name = 'task.learner.learning_rate'
        study.add({name: 0.0}, warm_start=1)
    made.rebind({'search.budget.trials': 2})
    with tune(made, job_log_dir=tmp_path) as study:
        first, second = study.trials
        assert first.decisions[name] == 0.02
        assert second.reward == pytest.approx(first.reward, abs=1e-6)
        begun = experiments(study, second)[''].train.init_from_checkpoint
        assert isinstance(begun, list) and begun[1] == WarmStart(base)


@pytest.mark.slow
def test_forks_continue_with_adapters(base: str, tmp_path: Path) -> None:
    scheduler = PopulationBasedTraining(population_size=2, interval=2, quantile=0.5)
    made = adapted(base, num_trials=3, scheduler=scheduler)
    made.rebind({'task.learner.learning_rate': pg.floatv(0.01, 0.05, 'log')})
    with tune(made, job_log_dir=tmp_path) as study:
        (fork,) = [each for each in study.trials if each.lineage.forked_from is not None]
        parent, step = fork.lineage.forked_from or (0, 0)
        begun = {each.step: each.reward for each in study.trial(parent).measurements}[step]
        assert fork.state == 'COMPLETED'
        assert (fork.reward or 0.0) < (begun or 0.0)
