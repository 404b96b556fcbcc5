"""What is known of a trial before its first step, and what becomes of those that cost too much."""

from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.experiment import Tunable
from paxtune.limits import Limit
from paxtune.rewards import MetricReward
from paxtune.runners import trial_directory
from paxtune.searching import Search
from paxtune.study import Study
from tests.trainer.tiny import experiment
from trainer.costs import memory_cost
from trainer.errors import UserError


@pytest.fixture(autouse=True)
def _no_compilation_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('paxtune.api.enable_compilation_cache', lambda: None)


HIDDEN = 'task.model.stack.layers[0].feed_forward.hidden_dims'


def widths(**search: Any) -> Tunable:
    """Two widths; the wider one has more parameters and needs more memory."""
    made = Tunable(
        **dict(experiment(num_steps=2).sym_init_args),
        search=Search(MetricReward('minimize', 'eval/log_pplx'), num_trials=2, **search),
    )
    made.rebind({HIDDEN: pg.oneof([32, 512])})
    return made


def costs_of(hidden: int, name: str) -> float:
    made = experiment(num_steps=2)
    made.rebind({HIDDEN: hidden})
    return memory_cost(made)[name]


def never_trained(study: Study, trial: Any) -> bool:
    directory = trial_directory(study, trial)
    return not (directory / 'checkpoints').exists() and not trial.measurements


def test_a_limit_on_parameters_keeps_the_algorithm_from_suggesting(tmp_path: Path) -> None:
    made = widths(limits=[Limit(metric='num_params', at_most=5000)])
    with tune(made, job_log_dir=tmp_path) as study:
        assert [trial.decisions[HIDDEN] for trial in study.trials] == [32]
        assert study.done_reason == 'there are no more than 1 different experiments in its space'
    with Study.load(tmp_path) as loaded:
        assert loaded.is_done


def test_a_limit_on_memory_makes_a_trial_infeasible_without_a_step(tmp_path: Path) -> None:
    name = 'device_memory_bytes'
    between = (costs_of(32, name) + costs_of(512, name)) / 2
    made = widths(limits=[Limit(metric=name, at_most=between)])
    with tune(made, job_log_dir=tmp_path) as study:
        by_width = {trial.decisions[HIDDEN]: trial for trial in study.trials}
        assert by_width[32].state == 'COMPLETED'
        assert by_width[32].metrics[name] < between
        assert str(by_width[512].infeasible_reason).startswith('device_memory_bytes is ')
        assert never_trained(study, by_width[512])


def test_what_the_device_cannot_hold_is_infeasible_without_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = 'device_memory_bytes'
    between = int((costs_of(32, name) + costs_of(512, name)) / 2)
    # A CPU does not say how much memory it has.
    monkeypatch.setattr('trainer.costs.device_memory_limit', lambda: between)
    with tune(widths(), job_log_dir=tmp_path) as study:
        by_width = {trial.decisions[HIDDEN]: trial for trial in study.trials}
        assert by_width[32].state == 'COMPLETED'
        assert 'GiB of device memory, and the device has' in str(by_width[512].infeasible_reason)
        assert never_trained(study, by_width[512])
        assert not by_width[512].is_failed


def test_costs_can_be_the_reward(tmp_path: Path) -> None:
    made = widths()
    made.rebind({'search.reward': MetricReward('minimize', 'flops_per_token')})
    with tune(made, job_log_dir=tmp_path) as study:
        assert study.best is not None
        assert study.best.decisions[HIDDEN] == 32


def test_where_every_experiment_is_too_large_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('paxtune.algorithms.sampling._MAX_INFEASIBLE', 100)  # For a quick end.
    made = widths(limits=[Limit(metric='num_params', at_most=10)])
    made.rebind({'task.learner.learning_rate': pg.floatv(1e-3, 1e-1)})
    with pytest.raises(UserError, match='num_params is'):
        tune(made, job_log_dir=tmp_path)
