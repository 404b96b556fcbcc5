"""Local checkpoints: a run that loses its process continues from them, and from no others."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.runs import final_state, measured, without_speed
from tests.factories.tiny import experiment
from trainer.checkpoints import local_part
from trainer.checkpoints.local_store import NAME
from trainer.experiment import Experiment, LocalCheckpoints
from trainer.loop.report import Interrupted, Report
from trainer.loop.train_loop import run
from trainer.symbolic.errors import UserError


class Lost(Exception):
    """Leaves the files of a run as the end of its process would."""


def made(directory: Path, **fields: Any) -> Experiment:
    """Ten steps: durable checkpoints after 6 and 10, local ones after 2, 4, 6 and 8."""
    found = experiment(num_steps=10, train__evaluation__every=5, **fields)
    local = LocalCheckpoints(str(directory), every=2)
    return found.rebind({'train.checkpoints.every': 6, 'train.checkpoints.local': local})


def lost_after(steps: int, what: Experiment, job_log_dir: Path) -> None:
    asked = iter(range(1, 99))

    def lose() -> bool:
        if next(asked) == steps:
            raise Lost
        return False

    with pytest.raises(Lost):
        measured(what, job_log_dir, should_interrupt=lose)


def kept(directory: Path) -> list[int]:
    """The steps of all local checkpoints in a directory."""
    return sorted(int(file.parent.name) for file in directory.rglob('part.json'))


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / 'memory'


@pytest.fixture(scope='module')
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Report], Any]:
    """The reports, and the final state, of the undisturbed run without local checkpoints."""
    directory = tmp_path_factory.mktemp('whole')
    plain = experiment(num_steps=10, train__evaluation__every=5, train__checkpoints__every=6)
    return measured(plain, directory), final_state(plain, directory)


def test_a_lost_run_continues_from_its_newest_local_checkpoint(
    tmp_path: Path, memory: Path, whole: Any
) -> None:
    lost_after(9, made(memory), tmp_path / 'job')
    assert kept(memory) == [6, 8]
    reports = measured(made(memory), tmp_path / 'job')
    assert reports[0].resumed_from == 8
    assert without_speed(reports[-1]) == without_speed(whole[0][-1])
    state = final_state(made(memory), tmp_path / 'job')
    jax.tree.map(np.testing.assert_array_equal, state, whole[1])
    assert not kept(memory)
    assert not list(memory.iterdir())


def test_a_step_that_is_saved_durably_is_not_read_locally(
    tmp_path: Path, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost_after(7, made(memory), tmp_path / 'job')
    for part in memory.rglob('part.json'):
        part.write_text('{}')
    assert measured(made(memory), tmp_path / 'job')[0].resumed_from == 6
    assert 'cannot be used' not in caplog.text


def test_a_damaged_local_checkpoint_gives_way_to_an_older_one(
    tmp_path: Path, memory: Path, whole: Any
) -> None:
    lost_after(5, made(memory), tmp_path / 'job')
    (damaged,) = memory.rglob('4/arrays.bin')
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    reports = measured(made(memory), tmp_path / 'job')
    assert reports[0].resumed_from == 2
    assert without_speed(reports[-1]) == without_speed(whole[0][-1])


def test_a_host_without_its_part_continues_from_the_durable_one(
    tmp_path: Path, memory: Path
) -> None:
    lost_after(9, made(memory), tmp_path / 'job')
    shutil.rmtree(memory)
    assert measured(made(memory), tmp_path / 'job')[0].resumed_from == 6


def test_no_other_run_uses_them(tmp_path: Path, memory: Path) -> None:
    lost_after(5, made(memory), tmp_path / 'job')
    # Another directory, and its copy under another name.
    shutil.copytree(tmp_path / 'job', tmp_path / 'copy')
    assert measured(made(memory), tmp_path / 'copy')[0].resumed_from == 0
    # Another experiment in the same directory.
    other = made(memory, task__learner__learning_rate=0.5)
    lost_after(1, other, tmp_path / 'job')
    assert not kept(memory)  # They are of no use for the other experiment.


def test_a_run_that_begins_again_uses_none(tmp_path: Path, memory: Path) -> None:
    lost_after(9, made(memory), tmp_path / 'job')
    shutil.rmtree(tmp_path / 'job' / 'checkpoints')
    assert measured(made(memory), tmp_path / 'job')[0].resumed_from == 0


def test_runs_that_will_not_resume_leave_nothing(tmp_path: Path, memory: Path) -> None:
    with pytest.raises(Interrupted):
        measured(made(memory), tmp_path / 'interrupted', should_interrupt=lambda: True)
    stopped = run(made(memory), tmp_path / 'stopped')
    next(stopped)
    stopped.close()
    assert not list(memory.iterdir())
    lost_after(5, made(memory), tmp_path / 'lost')
    lost_after(5, made(memory), tmp_path / 'deleted')
    shutil.rmtree(tmp_path / 'deleted')
    measured(made(memory), tmp_path / 'other')
    (left,) = memory.iterdir()
    owner = json.loads((left / 'run.json').read_text())['checkpoints']
    assert owner == str(tmp_path / 'lost' / 'checkpoints')


def test_a_full_memory_is_a_warning(
    tmp_path: Path,
    memory: Path,
    whole: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(local_part, 'write', full)
    reports = measured(made(memory), tmp_path / 'job')
    assert without_speed(reports[-1]) == without_speed(whole[0][-1])
    assert caplog.text.count('could not be written') == 1
    assert 'No space left on device' in caplog.text


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match=r'train\.checkpoints\.local\.directory=.*cannot write'):
        measured(made(tmp_path / 'file'), tmp_path / 'job')
    assert (tmp_path / 'job' / 'checkpoints' / NAME).exists()


@pytest.mark.parametrize(
    ('directory', 'every', 'message'),
    [
        ('gs://bucket/local', 2, 'expected an absolute path on each host'),
        ('local', 2, 'expected an absolute path on each host'),
        ('/dev/shm/runs', 6, r'local\.every \(6\) must be less than every \(6\)'),
    ],
)
def test_buckets_and_long_intervals_are_refused(directory: str, every: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        experiment().rebind(
            {
                'train.checkpoints.every': 6,
                'train.checkpoints.local': LocalCheckpoints(directory, every),
            }
        )
