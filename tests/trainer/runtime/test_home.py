"""Paths that begin with a home directory, in all places that take a path."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.checkpoints import experiment_record, handover
from trainer.inputs.text.stdlib import StdlibInput
from trainer.runtime import data_paths, directory
from trainer.runtime.home import expanded
from trainer.symbolic.errors import UserError

UNKNOWN = '~unknown-user/a'
READERS: list[Callable[[str], object]] = [
    expanded,
    directory.job_path,
    directory.absolute,
    directory.create,
    lambda path: directory.locked(path).__enter__(),
    lambda path: directory.read_json(path, 'a file'),
    data_paths.data_path,
    data_paths.find,
    lambda path: handover.take_over([path], path),
    lambda path: experiment_record.changes(path, '{}', (1, 1)),
    lambda path: StdlibInput(batch_size=1, sequence_length=8, split='train', path=path).read(),
]


@pytest.mark.parametrize('read', READERS)
def test_an_unknown_user_is_named_and_no_folder_is_made(
    read: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r'~unknown-user/a.*: this machine has no user unknown-user'
    ):
        read(UNKNOWN)
    assert not list(tmp_path.iterdir())


def test_the_home_of_another_user_is_looked_up() -> None:
    assert expanded('~root/a') == os.path.expanduser('~root') + '/a'
    assert expanded('a/~root') == 'a/~root'


def test_without_a_home_a_path_says_so_and_commands_work(tmp_path: Path) -> None:
    script = """
import os, pwd
pwd.getpwuid = lambda uid: {}[uid]  # As in a container whose user has no name.
from trainer.runtime import compilation_cache
from trainer.runtime.home import expanded
compilation_cache.enable()
assert 'JAX_COMPILATION_CACHE_DIR' not in os.environ
try:
    expanded('~/a')
except Exception as error:
    print(error)
"""
    dropped = ('HOME', 'XDG_CACHE_HOME', 'JAX_COMPILATION_CACHE_DIR')
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    ended = subprocess.run(
        [sys.executable, '-c', script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env=environment,
        check=False,
    )
    told = '~/a: this user has no home: set HOME, or write the path from / on\n'
    assert (ended.stdout, ended.stderr) == (told, '')
