import contextlib
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.runs import final_state, measured, without_speed
from tests.factories.tiny import experiment
from trainer import main
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.experiment import Checkpoints, Experiment, TrainLoop
from trainer.learner import SGD
from trainer.loop.report import Interrupted
from trainer.program.setup import compiled, localized
from trainer.state import TrainState
from trainer.symbolic.errors import UserError


@pytest.fixture(scope='module')
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job directory of a finished run of 3 steps, of which 2 and 3 are saved."""
    directory = tmp_path_factory.mktemp('source')
    measured(experiment(num_steps=3), directory)
    return directory


def warm(path: Path, **fields: Any) -> Any:
    return experiment(train__init_from_checkpoint=str(path), **fields)


def assert_equal(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(one), jax.device_get(other))


@pytest.mark.pax('Warm start from', 'init_from_checkpoint_rules')
@pytest.mark.parametrize('step', [None, 2, 3])
@pytest.mark.fast(1)
@pytest.mark.contract
def test_a_run_begins_with_the_parameters_of_another(
    step: int | None, source: Path, tmp_path: Path
) -> None:
    path = source / 'checkpoints' / (str(step) if step else '')
    # With a learning rate of zero, and no decay, the parameters stay what they were.
    made = warm(path, num_steps=1, task__learner__learning_rate=0.0)
    measured(made, tmp_path)
    state = final_state(made, tmp_path)
    assert state.step == 1
    assert_equal(state.params, state_in(source, step or 3).params)
    assert state.opt_state[0][0].count == 1  # Adam begins anew.


def state_in(directory: Path, step: int, made: Experiment | None = None) -> TrainState:
    """The state in a checkpoint of a run of `made`, or of the tiny experiment, read whole."""
    program, _ = compiled(localized(made or experiment()))
    # Only this one: what is not there is not read.
    alone = directory / f'only_{step}'
    alone.mkdir(exist_ok=True)
    shutil.copytree(directory / 'checkpoints' / str(step), alone / str(step), dirs_exist_ok=True)
    with contextlib.closing(CheckpointStore(alone)) as reader:
        restored = reader.restore(program.abstract_state)
    assert restored is not None
    return jax.device_get(restored.state)


@pytest.mark.slow
def test_a_warm_start_is_a_function_of_the_source(source: Path, tmp_path: Path) -> None:
    for name in 'ab':
        measured(warm(source / 'checkpoints', num_steps=2), tmp_path / name)
    # The seed draws the parameters, and these are not drawn.
    other_seed = warm(source / 'checkpoints', num_steps=2, train__random_seed=5)
    measured(other_seed, tmp_path / 'c')
    states = [final_state(experiment(), tmp_path / name) for name in 'abc']
    assert_equal(states[0], states[1])
    assert_equal(states[0], states[2])


@pytest.mark.slow
def test_another_optimizer_takes_the_parameters_alone(source: Path, tmp_path: Path) -> None:
    fields: dict[str, Any] = {'task__learner__optimizer': SGD(momentum=0.9)}
    got = measured(warm(source / 'checkpoints', num_steps=2, **fields), tmp_path / 'warm')
    cold = measured(experiment(num_steps=2, **fields), tmp_path / 'cold')
    assert got[0].metrics['eval/loss'] < cold[0].metrics['eval/loss']


@pytest.mark.slow
def test_a_run_that_resumes_goes_on_from_its_own(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / 'copy'
    shutil.copytree(source, copy)
    whole = measured(warm(copy / 'checkpoints'), tmp_path / 'whole')
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        measured(
            warm(copy / 'checkpoints'), tmp_path / 'parts', should_interrupt=lambda: next(asked)
        )
    shutil.rmtree(copy)  # Not needed any more.
    rest = measured(warm(copy / 'checkpoints'), tmp_path / 'parts')
    assert rest[0].resumed_from == 3
    assert without_speed(rest[-1]) == without_speed(whole[-1])


@pytest.mark.parametrize('where', ['nowhere', '.', 'metrics.jsonl', 'checkpoints/1'])
def test_a_place_without_a_checkpoint_is_refused(where: str, source: Path, tmp_path: Path) -> None:
    made = warm(source / where)
    message = 'train.init_from_checkpoint: there is no checkpoint in .*`checkpoints` of a run'
    with pytest.raises(UserError, match=message):
        measured(made, tmp_path / 'run')
    with pytest.raises(UserError, match=message):
        main.train(made, str(tmp_path / 'run'), resume_command=[])
    assert not (tmp_path / 'run').exists()


def test_other_parameters_are_named(source: Path, tmp_path: Path) -> None:
    made = warm(
        source / 'checkpoints',
        task__model__stack__repeats=2,
        task__model__embedding__vocab_size=40,
    )
    with pytest.raises(UserError) as refused:
        measured(made, tmp_path / 'run')
    lines = str(refused.value).splitlines()
    assert lines[0].startswith('train.init_from_checkpoint: ')
    assert '  embedding.table (40, 16): embedding.table has the shape (32, 16) there' in lines
    key = 'stack.layers_1.attention.key'
    assert f'  {key} (16, 2, 8): {key} is missing' in lines
    assert len(lines) == 1 + 1 + 8  # The log has: the table, and the eight of the second layer.
    assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_other_arrays_of_the_source_are_ignored(source: Path, tmp_path: Path) -> None:
    deeper = experiment(num_steps=1, task__model__stack__repeats=2)
    measured(deeper, tmp_path / 'deeper')
    made = warm(tmp_path / 'deeper' / 'checkpoints', num_steps=1, task__learner__learning_rate=0.0)
    measured(made, tmp_path / 'run')
    params = final_state(made, tmp_path / 'run').params
    wanted = final_state(deeper, tmp_path / 'deeper').params
    assert_equal(params['stack']['layers_0'], wanted['stack']['layers_0'])
    assert 'layers_1' not in params['stack']


def test_a_damaged_source_is_refused(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / 'copy')
    for part in (tmp_path / 'copy' / 'checkpoints' / '3').rglob('*'):
        if part.is_file():
            part.write_bytes(b'')
    with pytest.raises(UserError, match=r'train.init_from_checkpoint: .*cannot be read'):
        measured(warm(tmp_path / 'copy' / 'checkpoints'), tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


def test_the_loop_is_checked_as_before() -> None:
    with pytest.raises(ValueError, match='keep must be at least 1: 0'):
        TrainLoop(checkpoints=Checkpoints(keep=0))
    assert TrainLoop(random_seed=-1).init_from_checkpoint is None
