"""Training that is killed, by real signals, and resumed by the same command."""

import signal
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


@pytest.mark.pax('--jax_fully_async_checkpoint')
@pytest.mark.parametrize(('name', 'where'), [('Text', 'save:2'), ('PackedSeqIO', 'step:8')])
@pytest.mark.sentinel
def test_killed_training_ends_as_the_undisturbed_one(name: str, where: str, tmp_path: Path) -> None:
    parts, whole = tmp_path / 'parts', tmp_path / 'whole'
    stopped = train(name, parts, kill=where)
    assert stopped.returncode == -signal.SIGKILL, stopped.stderr
    for directory in (parts, whole):
        passed(train(name, directory))
    jax.tree.map(np.testing.assert_array_equal, state_of(name, parts), state_of(name, whole))
    assert losses(parts) == losses(whole)


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
