"""Job directories."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etils import epath
from hypothesis import given
from hypothesis import strategies as st

from trainer.runtime import directory
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

ROOT = Path(__file__).parents[3]


class Chosen(Component):
    pass


def start(script: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, '-c', script, *args], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock on tmp_path/job."""
    script = """
import sys, time
from trainer.runtime import directory
with directory.locked(sys.argv[1]):
    print('locked', flush=True)
    time.sleep(60)
"""
    with start(script, str(tmp_path / 'job')) as process:
        assert process.stdout and process.stdout.readline() == 'locked\n'
        yield process
        process.kill()


def test_create_makes_parents_and_finds_again(tmp_path: Path) -> None:
    made = directory.create(tmp_path / 'a' / 'b')
    assert made.is_dir() and directory.create(str(made)) == made
    assert not list(made.iterdir())


@pytest.mark.parametrize(
    ('path', 'message'),
    [
        ('s3://bucket', '--job_log_dir=s3://bucket: name a directory on a local disk, or gs://'),
        ('s3://bucket', 'Only data may be in S3'),
        ('/proc/no/such', '--job_log_dir=/proc/no/such: cannot write there'),
        ('/dev/null', 'it is not a directory'),
        ('/dev/null/job', 'Not a directory'),
        ('/sys', 'cannot write there'),
    ],
)
def test_create_refuses(path: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        directory.create(path)


def test_create_finds_a_bucket_and_leaves_nothing_there(store: epath.Path) -> None:
    assert directory.create(store / 'a') == store / 'a'
    assert not store.exists()


def test_create_refuses_a_bucket_that_is_not_there(store: epath.Path) -> None:
    with pytest.raises(UserError, match=r'--job_log_dir=gs://none/a: .*there is no such bucket'):
        directory.create('gs://none/a')


def test_a_store_needs_what_speaks_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'gcsfs', None)  # As if it were not installed.
    with pytest.raises(UserError, match=r"gs:// needs gcsfs: pip install 'paxtune\[gcs\]'"):
        directory.job_path('gs://bucket/job')


def test_a_store_has_no_locks() -> None:
    with (
        pytest.raises(UserError, match=r'--job_log_dir=gs://bucket/job: .*local disk.*SQLite'),
        directory.locked('gs://bucket/job'),
    ):
        pytest.fail('it is held')


def test_second_process_is_refused_with_the_holders_pid(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with (
        pytest.raises(UserError, match=f'process {holder.pid} is working there'),
        directory.locked(tmp_path / 'job'),
    ):
        pytest.fail('both hold it')


def test_killed_process_lets_go(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    with directory.locked(tmp_path / 'job'):
        assert (tmp_path / 'job' / 'lock').read_text() == str(os.getpid())


def test_lock_is_released_and_also_holds_within_a_process(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            directory.locked(tmp_path),
            pytest.raises(UserError, match=str(os.getpid())),
            directory.locked(tmp_path),
        ):
            pytest.fail('both hold it')


def test_a_shared_lock_is_held_until_the_last_one_leaves(tmp_path: Path) -> None:
    with directory.locked(tmp_path, is_shared=True):
        with directory.locked(tmp_path, is_shared=True):
            pass
        # The other has left: its lock file is still the one that this lock is on.
        with (
            pytest.raises(UserError, match='is working there'),
            directory.locked(tmp_path),
        ):
            pytest.fail('one holds it alone, and another one holds it')
    with directory.locked(tmp_path):
        pass


def test_a_written_file_and_its_name_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sync, synced = tmp_path / 'record.json', os.fsync, []

    def recorded(descriptor: int) -> None:
        # The content before the file has its name, and the name after that.
        synced.append((os.path.isdir(f'/proc/self/fd/{descriptor}'), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, 'fsync', recorded)
    directory.write_text(path, 'whole')
    assert synced == [(False, False), (True, True)]


@pytest.mark.pax('Trial directory with')
@pytest.mark.parametrize(
    ('decisions', 'name'),
    [
        ({}, '0012'),
        (
            {'task.learner.learning_rate': 3.14e-3, 'm.num_heads': 4},
            '0012-learning_rate=3.1e-03-num_heads=4',
        ),
        (
            {'m.layers[0].kind': Chosen(), 'm.layers[1].kind': None},
            '0012-layers.0.kind=Chosen-layers.1.kind=None',
        ),
        ({'m.layers[0]': 'a/b c', 'm.widths[0]': True}, '0012-layers.0=a_b_c-widths.0=True'),
        ({'a.x': 1, 'b.x': 2}, '0012-a.x=1-b.x=2'),
        ({'a': 'x' * 99, 'b': 2}, '0012'),
    ],
)
def test_trial_directory_name(decisions: dict[str, Any], name: str) -> None:
    assert directory.trial_directory_name(12, decisions) == name


path_parts = st.from_regex(r'[a-zA-Zäß_-][\w -]{0,20}', fullmatch=True)
values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60)


@pytest.mark.pax(8, 'Trial directory with')
@given(
    st.integers(0, 9999),
    st.dictionaries(st.lists(path_parts, min_size=1, max_size=4).map('.'.join), values, max_size=6),
)
def test_trial_directory_names_are_short_safe_and_sort(
    number: int, decisions: dict[str, Any]
) -> None:
    name = directory.trial_directory_name(number, decisions)
    assert re.fullmatch(r'[A-Za-z0-9._=+-]{4,80}', name)
    assert name < directory.trial_directory_name(number + 1, {}) or number == 9999


def test_write_json(tmp_path: Path) -> None:
    path = tmp_path / 'trial.json'
    for value in ({'a': [1, 2.5]}, {'b': 'ü'}):
        directory.write_json(path, value)
        assert json.loads(path.read_text(encoding='utf-8')) == value
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_leaves_the_old_text(tmp_path: Path) -> None:
    path = tmp_path / 'x'
    directory.write_text(path, 'old')
    with pytest.raises(UnicodeEncodeError):
        directory.write_text(path, 'new' * 10_000 + '\ud800')
    assert path.read_text() == 'old'
    assert list(tmp_path.iterdir()) == [path]


def test_writers_with_the_same_process_id_share_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two containers with one directory, process ids coincide."""
    path, sync, others = tmp_path / 'record.json', os.fsync, ['other']

    def sync_while_another_writes(descriptor: int) -> None:
        if others:
            directory.write_text(path, others.pop())
        sync(descriptor)

    monkeypatch.setattr(os, 'fsync', sync_while_another_writes)
    directory.write_text(path, 'mine')
    assert path.read_text() == 'mine'
    assert list(tmp_path.iterdir()) == [path]


def test_kill_while_writing_leaves_a_whole_file(tmp_path: Path) -> None:
    script = """
import itertools, sys
from trainer.runtime import directory
for i in itertools.count():
    directory.write_json(sys.argv[1], [i] * 100_000)
    print(i, flush=True)
"""
    path = tmp_path / 'trial.json'
    for delay in (0.0, 0.013, 0.029):
        with start(script, str(path)) as process:
            assert process.stdout and process.stdout.readline()
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        assert len(set(json.loads(path.read_text()))) == 1


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('HOME', str(tmp_path))
    assert directory.job_path('~/run') == tmp_path / 'run'
    assert directory.absolute('~/run') == epath.Path(tmp_path / 'run')
    assert directory.create('~/made') == tmp_path / 'made'
    with directory.locked('~/held') as held:
        assert held == tmp_path / 'held'


def test_a_text_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (tmp_path / 'a.json').write_text('[1]')
    assert directory.read_text(tmp_path / 'a.json', 3) == '[1]'
    os.truncate(tmp_path / 'a.json', 2**40)  # It takes no room on the disk.
    with pytest.raises(ValueError, match='more than 3 bytes'):
        directory.read_text(tmp_path / 'a.json', 3)
    with pytest.raises(UserError, match=r'a file: cannot be read: it has more than 1,000 bytes'):
        directory.read_json(tmp_path / 'a.json', 'a file', 1000)
