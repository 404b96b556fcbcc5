import pickle
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.factories.tiny import CountingInput, experiment, model
from trainer import main
from trainer.experiment import Experiment
from trainer.inputs.base import Batch
from trainer.layers import FeedForward
from trainer.loop.report import Report
from trainer.loop.train_loop import run
from trainer.metrics import Metrics
from trainer.runtime.signals import SkipTrial, StopTrial
from trainer.symbolic.errors import UserError
from trainer.task import DeviceBatch
from trainer.tasks import LanguageModelTask


class SignalInput(CountingInput):
    """Raises a signal instead of a batch, or before there is any."""

    where: str = 'get_next'
    signal: str = 'stop'
    at_batch: int = 4

    def prepare(self) -> None:
        if self.where == 'prepare':
            raise made_signal(self.signal)

    def get_next(self) -> Batch:
        if self.where == 'get_next' and self._batch == self.at_batch:
            raise made_signal(self.signal)
        return super().get_next()


class SignalTask(LanguageModelTask):
    """Raises a signal while a step is traced."""

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        raise made_signal('stop')


class SignalLayer(FeedForward):
    """Raises a signal while it is traced."""

    def forward(self, *args: Any) -> jax.Array:
        raise made_signal('skip')


def made_signal(kind: str) -> Exception:
    if kind == 'stop':
        return StopTrial('enough', metrics={'eval/loss': 0.5})
    return SkipTrial('no use')


def measured(made: Experiment, directory: Path, **fields: Any) -> list[Report]:
    return list(run(made, directory, **fields))


def with_input(**fields: Any) -> Experiment:
    return experiment(train_input=SignalInput(batch_size=8, is_training=True, **fields))


@pytest.mark.slow
def test_a_signal_of_an_input_passes_and_what_was_trained_is_kept(tmp_path: Path) -> None:
    got = []
    with pytest.raises(StopTrial, match='enough') as raised:
        got += measured(with_input(), tmp_path)
    assert raised.value.step == 4
    assert raised.value.metrics == {'eval/loss': 0.5}
    assert sorted(p.name for p in (tmp_path / 'checkpoints').iterdir()) == ['2', '4']
    # Again, from the checkpoint: the signal comes again, at the same step.
    with pytest.raises(StopTrial) as raised:
        measured(with_input(), tmp_path)
    assert raised.value.step == 4
    # And without the signal, the run goes on as if there had been none.
    rest = measured(with_input(at_batch=99), tmp_path, allow_changes=True)
    assert rest[0].resumed_from == 4
    whole = measured(experiment(), tmp_path / 'whole')
    assert rest[-1].metrics['eval/loss'] == whole[-1].metrics['eval/loss']


def test_a_signal_before_the_first_step_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SkipTrial, match='no use') as raised:
        measured(with_input(where='prepare', signal='skip'), tmp_path / 'run')
    assert raised.value.step == 0
    assert not (tmp_path / 'run').exists()


@pytest.mark.pax('BaseTrainProgram')
def test_signals_of_a_layer_a_task_and_an_evaluation_pass(tmp_path: Path) -> None:
    block = model().stack.layers[0].clone(deep=True).rebind(feed_forward=SignalLayer(32))
    with pytest.raises(SkipTrial):
        measured(experiment(task__model__stack__layers=[block]), tmp_path / 'layer')
    made = experiment()
    made.rebind(task=SignalTask(made.task.model, made.task.learner))
    with pytest.raises(StopTrial) as raised:
        measured(made, tmp_path / 'task')
    assert raised.value.step == 0
    made = experiment(eval_inputs={'eval': SignalInput(batch_size=8, at_batch=1)})
    with pytest.raises(StopTrial) as raised:
        measured(made, tmp_path / 'eval')
    assert raised.value.step == 2
    # No half-written checkpoint, and the run can go on.
    assert [p.name for p in (tmp_path / 'eval' / 'checkpoints').iterdir()] == ['2']
    rest = measured(experiment(), tmp_path / 'eval', allow_changes=True)
    assert rest[0].resumed_from == 2


@pytest.mark.pax('early_stopping_fn')
def test_training_prints_why_it_stopped(tmp_path: Path, capsys: Any) -> None:
    assert main.train(with_input(), str(tmp_path), resume_command=[]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == 'stopped at step 4: enough'
    assert lines[0] == f'Training to step 6 in {tmp_path}'
    assert lines[1].startswith('step 2: ')


@pytest.mark.parametrize('where', ['get_next', 'prepare'])
def test_training_that_gave_up_is_an_error_for_people(where: str, tmp_path: Path) -> None:
    step = {'get_next': 4, 'prepare': 0}[where]
    with pytest.raises(UserError, match=f'the experiment gave up at step {step}: no use'):
        main.train(with_input(where=where, signal='skip'), str(tmp_path), resume_command=[])


def test_a_stop_replaces_the_reward_or_the_metrics() -> None:
    assert StopTrial('x').reward is None
    assert StopTrial('x', reward=0.0).reward == 0.0
    with pytest.raises(ValueError, match='reward or metrics, not both'):
        StopTrial('x', reward=1.0, metrics={})


@pytest.mark.parametrize('signal', [StopTrial('why', reward=2.0), SkipTrial('why')])
def test_signals_travel_between_processes(signal: Any) -> None:
    signal.step = 7
    again = pickle.loads(pickle.dumps(signal))
    assert type(again) is type(signal) and vars(again) == vars(signal) and str(again) == 'why'
