"""Signals of an experiment: they end its trial, wherever they are raised."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paxtune.api import tune
from paxtune.experiment import Tunable
from paxtune.study.trial_paths import trial_directory
from tests.factories.tiny import CountingInput
from tests.factories.tunables import rates
from trainer.inputs.base import Batch
from trainer.layers import FeedForward
from trainer.runtime.signals import SkipTrial, StopTrial
from trainer.tasks import LanguageModelTask


class SignalInput(CountingInput):
    """Raises a signal instead of a batch, or before there is any."""

    signal: str
    is_early: bool = False
    at_batch: int = 1

    def prepare(self) -> None:
        if self.is_early:
            raise made_signal(self.signal)

    def get_next(self) -> Batch:
        if self._batch == self.at_batch:
            raise made_signal(self.signal)
        return super().get_next()


class SignalTask(LanguageModelTask):
    """Raises a signal while a step is traced."""

    signal: str = 'stop'

    def measure(self, outputs: Any, batch: Any) -> Any:
        raise made_signal(self.signal)


class SignalLayer(FeedForward):
    """Raises a signal while it is traced."""

    signal: str = 'stop'

    def forward(self, *args: Any) -> Any:
        raise made_signal(self.signal)


def made_signal(kind: str) -> Exception:
    return StopTrial('enough', reward=0.5) if kind == 'stop' else SkipTrial('no use')


def in_layer(signal: str) -> Tunable:
    return rates(task__model__stack__layers=[SignalLayer(32, signal=signal)])


def in_task(signal: str) -> Tunable:
    task = rates().task
    return rates(task=SignalTask(task.model, task.learner, signal=signal))


def in_training_input(signal: str) -> Tunable:
    return rates(train_input=SignalInput(batch_size=8, is_training=True, signal=signal))


def before_the_first_batch(signal: str) -> Tunable:
    data = SignalInput(batch_size=8, is_training=True, signal=signal, is_early=True)
    return rates(train_input=data)


def in_evaluation(signal: str) -> Tunable:
    return rates(eval_inputs={'eval': SignalInput(batch_size=8, signal=signal)})


@pytest.mark.pax(6, '… from the code')
@pytest.mark.parametrize('signal', ['stop', 'skip'])
@pytest.mark.parametrize(
    'make',
    [
        in_layer,
        in_task,
        pytest.param(in_training_input, marks=pytest.mark.slow),
        before_the_first_batch,
        pytest.param(in_evaluation, marks=pytest.mark.slow),
    ],
)
@pytest.mark.fast(1)
def test_a_signal_from_anywhere_ends_its_trial_and_not_the_study(
    make: Callable[[str], Tunable], signal: str, tmp_path: Path
) -> None:
    with tune(make(signal), job_log_dir=tmp_path) as study:
        outcomes = [(trial.state, trial.reward, trial.reason) for trial in study.trials]
        if signal == 'stop':
            assert outcomes == [('COMPLETED', 0.5, 'enough')] * 2
        else:
            assert outcomes == [('INFEASIBLE', None, 'no use')] * 2
        assert not any(trial.is_failed for trial in study.trials)


@pytest.mark.slow
def test_a_signal_in_one_sub_experiment_leaves_out_the_others(tmp_path: Path) -> None:
    stops = SignalInput(batch_size=8, is_training=True, signal='stop')
    changes = {'first': {'train_input': stops}, 'second': {}}
    with tune(rates(1, sub_experiments=changes), job_log_dir=tmp_path) as study:
        (trial,) = study.trials
        assert (trial.state, trial.reward) == ('COMPLETED', 0.5)
        assert not (trial_directory(study.directory, trial) / 'second').exists()
