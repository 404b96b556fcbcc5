"""Searches whose children inherit weights of other shapes, and train fewer steps."""

import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyglove as pg
import pytest

from paxtune.algorithms import RegularizedEvolution
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.rewards import MetricReward
from paxtune.running import experiment_runner
from paxtune.running.trial_spec import experiments
from paxtune.study.study import Study
from tests.factories.tiny import experiment
from trainer.layers import Attention, FeedForward, Residual, Stack
from trainer.symbolic.errors import UserError
from trainer.warm_start.warm_start import WarmStartLoader
from trainer.warm_start_rules import Inheritance


def widths(**search: Any) -> Tunable:
    """A search over the width of a layer."""
    evolution = RegularizedEvolution(population_size=1, tournament_size=1)
    fields = {'algorithm': evolution, 'budget': Budget(3), 'warm_start': 'parent', **search}
    made = Tunable(
        **dict(experiment(num_steps=4).sym_init_args),
        search=Search(MetricReward('minimize', 'eval/log_pplx'), **fields),
    )
    width = pg.oneof([16, 24, 32])
    made.rebind({'task.model.stack.layers[0].feed_forward.hidden_dims': width})
    return made


def course(study: Study) -> list[Any]:
    return [
        (each.decisions, each.lineage.warm_start, [(m.step, m.rewards) for m in each.measurements])
        for each in study.trials
    ]


@pytest.mark.slow
def test_children_inherit_layers_of_another_width_and_repeat_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tune(widths(), job_log_dir=tmp_path / 'whole') as study:
        whole = course(study)
        assert [each.lineage.warm_start for each in study.trials] == [None, 1, 2]
        first, second, _ = study.trials
        assert (second.reward or np.inf) < (first.reward or 0.0)
        started = experiments(study, second)[''].train.init_from_checkpoint
        assert isinstance(started, Inheritance)
    interrupted = []

    def interrupting(loader: WarmStartLoader, job_log_dir: Any) -> None:
        interrupted.append(job_log_dir)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(WarmStartLoader, 'write_provenance', interrupting)
        tune(widths(), job_log_dir=tmp_path / 'parts')
    assert interrupted
    with tune(widths(), job_log_dir=tmp_path / 'parts') as study:
        assert course(study) == whole


@pytest.mark.slow
def test_children_train_as_many_steps_as_their_overrides_say(tmp_path: Path) -> None:
    made = widths(child_overrides={'train.num_train_steps': 2})
    with tune(made, job_log_dir=tmp_path) as study:
        assert [each.measurements[-1].step for each in study.trials] == [4, 2, 2]
        assert [each.lineage.warm_start_step for each in study.trials] == [None, 4, 2]
        seeds = [experiments(study, each)[''].train.random_seed for each in study.trials]
        assert seeds == [0, 1, 2]
        assert experiments(study, study.retry(3).view)[''].train.random_seed == 2


@pytest.mark.slow
def test_children_without_common_arrays_begin_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any) -> None:
        raise UserError('the models have no array in common')

    monkeypatch.setattr(experiment_runner, 'WarmStartLoader', refused)
    with tune(widths(), job_log_dir=tmp_path) as study:
        assert [each.lineage.warm_start for each in study.trials] == [None] * 3
        assert [each.lineage.parent for each in study.trials] == [None, 1, 2]


@pytest.mark.slow
def test_children_inherit_across_kinds_of_layers(tmp_path: Path) -> None:
    def kinds() -> Any:
        return pg.oneof([Residual(Attention(2)), Residual(FeedForward(8))])

    made = widths()
    made.rebind({'task.model.stack': Stack([kinds(), kinds()], scan='always')})
    with tune(made, job_log_dir=tmp_path) as study:
        assert [each.lineage.warm_start for each in study.trials] == [None, 1, 2]
        assert all(np.isfinite(jax.device_get(each.reward)) for each in study.trials)


@pytest.mark.parametrize(
    ('overrides', 'message'),
    [
        ({'train.num_steps': 2}, r'search\.child_overrides: train\.num_steps: .*num_train_steps'),
        ({'train.num_train_steps': 'x'}, r'search\.child_overrides: train\.num_train_steps'),
    ],
)
def test_overrides_that_do_not_fit_are_refused(
    overrides: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        tune(widths(child_overrides=overrides), job_log_dir=tmp_path)


def test_overrides_need_children() -> None:
    with pytest.raises(ValueError, match=r"child_overrides needs warm_start='parent'"):
        widths(warm_start=None, child_overrides={'train.num_train_steps': 2})


def test_a_function_has_nothing_to_override() -> None:
    with pytest.raises(UserError, match=r'search\.child_overrides: only an experiment'):
        tune(
            lambda values: float(values.x),
            space={'x': pg.oneof([1, 2])},
            objective='minimize',
            algorithm=RegularizedEvolution(population_size=1, tournament_size=1),
            warm_start='parent',
            child_overrides={'train.num_train_steps': 2},
            num_trials=2,
        )
