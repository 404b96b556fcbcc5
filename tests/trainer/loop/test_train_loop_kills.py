"""Training that is killed, by real signals, and resumed by the same command."""

import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.factories import real_input_experiments as killed
from tests.servers.processes import command, passed
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.program.setup import compiled, localized
from trainer.runtime.directory import JobPath
from trainer.runtime.metric_writer import read_metrics

pytestmark = pytest.mark.slow

_STEPS = [f'step:{step}' for step in sorted(random.Random(1).sample(range(2, 13), 3))]


def train(name: str, directory: JobPath, kill: str | None = None) -> Any:
    flags = [f'--exp=tests.factories.real_input_experiments.{name}', f'--job_log_dir={directory}']
    return command('trainer.main', *flags, kill=kill)


def state_of(name: str, directory: JobPath) -> Any:
    program, _ = compiled(localized(getattr(killed, name)()))
    restored = CheckpointStore(directory / 'checkpoints').restore(program.abstract_state)
    assert restored is not None
    return jax.device_get(restored.state)


def losses(directory: JobPath) -> list[tuple[int, Any]]:
    records = read_metrics(directory / 'metrics.jsonl')
    return [(r['step'], r.get('train/loss', r.get('eval/loss'))) for r in records]


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    done: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in done:
            done[name] = tmp_path_factory.mktemp(name)
            passed(train(name, done[name]))
        return done[name]

    return directory


@pytest.mark.pax('`--mode`: train', '--jax_fully_async_checkpoint', 'enable_input_checkpointing')
@pytest.mark.parametrize('where', [*_STEPS, 'save:2'])
@pytest.mark.parametrize('name', ['Text', 'PackedSeqIO'])
@pytest.mark.sentinel
def test_killed_training_ends_as_the_undisturbed_one(
    name: str, where: str, tmp_path: Path, undisturbed: Callable[[str], Path]
) -> None:
    stopped = train(name, tmp_path, kill=where)
    assert stopped.returncode == -signal.SIGKILL, stopped.stderr
    passed(train(name, tmp_path))
    whole = undisturbed(name)
    jax.tree.map(np.testing.assert_array_equal, state_of(name, tmp_path), state_of(name, whole))
    assert losses(tmp_path) == losses(whole)


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    stopped = train('Text', tmp_path, kill='int:5')
    assert stopped.returncode == 130, stopped.stderr
    assert 'Stopped at step 5. To resume:' in stopped.stdout
    assert (tmp_path / 'checkpoints' / '5').is_dir()
    assert 'step 12: ' in passed(train('Text', tmp_path))


def test_eval_once_prints_the_metrics_of_the_newest_checkpoint(
    undisturbed: Callable[[str], Path],
) -> None:
    directory = undisturbed('Text')
    flags = [
        '--exp=tests.factories.real_input_experiments.Text',
        f'--job_log_dir={directory}',
        '--mode=eval_once',
    ]
    out = passed(command('trainer.main', *flags))
    printed = re.search(r'step 12: .*eval/loss=(\S+)', out)
    assert printed is not None
    assert printed[1] == f'{losses(directory)[-1][1]:.6g}'


def test_compiled_programs_are_shared_across_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    passed(train('Text', tmp_path / 'one'))
    entries = set((tmp_path / 'cache').rglob('*-cache'))
    assert entries
    rate = ['--set', 'task.learner.learning_rate=0.02', 'task.learner.optimizer.b1=0.8']
    flags = [
        '--exp=tests.factories.real_input_experiments.Text',
        f'--job_log_dir={tmp_path / "two"}',
        *rate,
    ]
    passed(command('trainer.main', *flags))
    assert set((tmp_path / 'cache').rglob('*-cache')) == entries
