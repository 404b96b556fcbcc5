"""Runs whose disk is full: they say so, and go on when there is room again."""

import contextlib
import errno
import gc
import pickle
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from tests.factories.runs import final_state, measured, without_speed
from tests.factories.tiny import experiment
from tools.servers.disks import SmallDisk, small_disk
from trainer.checkpoints.checkpoint import CheckpointStore, saved_checkpoints
from trainer.checkpoints.manifest import Progress
from trainer.checkpoints.retention import RetentionPolicy
from trainer.experiment import Checkpoints, Experiment
from trainer.loop.train_loop import run
from trainer.program.setup import compiled, localized
from trainer.runtime.directory import write_json
from trainer.runtime.metric_writer import MetricWriter, read_metrics
from trainer.symbolic.errors import SaveError, is_disk_full

# Orbax gives up at the first error, and closes an event loop that tensorstore still reports to.
pytestmark = pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')

_KIB = 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / 'disk') as disk:
        yield disk
    gc.collect()  # What orbax left of a failed save must not end in another test.


@pytest.fixture(scope='module')
def made() -> Experiment:
    return experiment(num_steps=6)


@pytest.fixture(scope='module')
def undisturbed(made: Experiment, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    directory = tmp_path_factory.mktemp('undisturbed')
    whole = {each.step: without_speed(each) for each in measured(made, directory)}
    return whole, final_state(made, directory)


# With so much room a save fails in another of its files each; with none the run cannot begin.
@pytest.mark.slow
@pytest.mark.parametrize('room', [0, 12, 56, 80])
def test_a_run_on_a_full_disk_says_so_and_ends_as_the_undisturbed_one_when_there_is_room(
    room: int, made: Experiment, disk: SmallDisk, undisturbed: tuple[Any, Any]
) -> None:
    directory = disk.path / 'run'
    running = run(made, directory)
    next(running)
    running.close()
    disk.fill(but=room * _KIB)
    with pytest.raises((OSError, SaveError)) as raised:
        measured(made, directory)
    assert is_disk_full(raised.value)
    assert [saved.name for saved in saved_checkpoints(epath.Path(directory) / 'checkpoints')] == [
        '2'
    ]
    disk.free()
    rest = measured(made, directory)
    whole, state = undisturbed
    assert {each.step: without_speed(each) for each in rest} == whole
    assert rest[0].resumed_from == 2
    jax.tree.map(np.testing.assert_array_equal, final_state(made, directory), state)
    assert [r['step'] for r in read_metrics(directory / 'metrics.jsonl')] == [
        1, 2, 2, 3, 4, 4, 5, 6, 6,
    ]  # fmt: skip


@pytest.mark.pax('A failed save (Pax')
def test_a_failed_save_names_the_checkpoint(made: Experiment, disk: SmallDisk) -> None:
    program, values = compiled(localized(made))
    checkpoints = CheckpointStore(disk.path / 'checkpoints', RetentionPolicy(Checkpoints()))
    disk.fill(but=40 * _KIB)
    path = checkpoints.save(1, program.init(program.random_key(0), values), Progress())
    with pytest.raises(SaveError, match=f'checkpoint {path} could not be written: ') as raised:
        checkpoints.wait()
    assert raised.value.path == path
    assert is_disk_full(raised.value)
    with pytest.raises(SaveError):
        checkpoints.close()


def test_a_directory_that_cannot_be_written_ends_the_run(made: Experiment, tmp_path: Path) -> None:
    running = run(made, tmp_path)
    next(running)
    checkpoints = tmp_path / 'checkpoints'
    while not saved_checkpoints(epath.Path(checkpoints)):  # The save of step 2 is under way.
        time.sleep(0.01)
    checkpoints.rename(tmp_path / 'elsewhere')
    checkpoints.write_text('no directory')
    with pytest.raises(SaveError, match=f'checkpoint {checkpoints}/4 could not be written: '):
        list(running)
    running.close()
    gc.collect()


def test_scalars_that_do_not_fit_are_an_error_and_no_hang(tmp_path: Path, disk: SmallDisk) -> None:
    (tmp_path / 'summaries').symlink_to(disk.path)
    summaries = MetricWriter(tmp_path, 0)
    disk.fill()
    with pytest.raises(OSError, match='No space left') as raised:
        for step in range(10_000):
            summaries.write(step, {'train/loss': 1.0})
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match='No space left'):
        summaries.close()


def test_a_file_that_does_not_fit_stays_what_it_was(disk: SmallDisk) -> None:
    path = disk.path / 'trial.json'
    write_json(path, {'state': 'ACTIVE'})
    disk.fill()
    with pytest.raises(OSError, match='No space left'):
        write_json(path, {'state': 'ACTIVE', 'measurements': ['x' * 8 * _KIB]})
    assert path.read_text() == '{\n  "state": "ACTIVE"\n}\n'
    assert sorted(each.name for each in disk.path.iterdir()) == ['ballast', 'trial.json']


def caused() -> None:
    raise SaveError('a save') from OSError(errno.EDQUOT, 'Disk quota exceeded')


def cleaning_up() -> None:
    try:
        raise OSError(errno.ENOSPC, 'No space left on device')
    finally:
        raise KeyError('cleaning up')


def hidden() -> None:
    try:
        raise OSError(errno.ENOSPC, 'No space left on device')
    except OSError:
        raise ValueError('about something else') from None


def grouped() -> None:
    full = OSError(errno.ENOSPC, 'No space left on device')
    raise ExceptionGroup('some', [ValueError('x'), ExceptionGroup('more', [full])])


def in_database() -> None:
    with contextlib.closing(sqlite3.connect(':memory:')) as database:
        database.execute('PRAGMA max_page_count = 1')
        database.execute('CREATE TABLE trials (number)')


def out_of_memory() -> None:
    raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying to allocate 28 bytes')


@pytest.mark.parametrize(
    ('action', 'is_full'),
    [
        (caused, True),
        (cleaning_up, True),
        (grouped, True),
        (in_database, True),
        (hidden, False),
        (out_of_memory, False),
    ],
)
def test_a_full_disk_is_known_by_whatever_it_leads_to(
    action: Callable[[], None], is_full: bool
) -> None:
    with pytest.raises(Exception) as raised:
        action()
    assert is_disk_full(raised.value) == is_full


def test_a_failed_save_can_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(SaveError('not written', '/runs/checkpoints/2')))
    assert (str(error), error.path) == ('not written', '/runs/checkpoints/2')
