"""Compiled programs are shared between processes, also after one of them was killed."""

import os
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

from trainer.runtime import compilation_cache

# A program that sets no limit stores something, then a command does.
COMPILING = """
import jax
from jax.experimental.compilation_cache import compilation_cache as of_jax
from trainer.runtime import compilation_cache

jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
jax.jit(lambda x: x + 1)(1.0)
of_jax.reset_cache()
compilation_cache.enable()


@jax.jit
def compiled_by_a_command(x):
    return x + 2


compiled_by_a_command(1.0)
"""


def compile_with(**environment: str) -> None:
    others = {k: v for k, v in os.environ.items() if k != 'JAX_COMPILATION_CACHE_DIR'}
    done = subprocess.run(
        [sys.executable, '-W', 'error', '-c', COMPILING],
        env=others | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def entries(tmp_path: Path) -> Path:
    """A cache with an entry, and another one that is not whole."""
    for name in ('.lockfile', 'whole-cache', 'whole-atime', 'half-cache'):
        (tmp_path / name).write_text('content')
    return tmp_path


def test_an_incomplete_entry_of_a_killed_process_is_removed(entries: Path) -> None:
    compilation_cache.remove_incomplete_entries(entries)
    assert {file.name for file in entries.iterdir()} == {'.lockfile', 'whole-cache', 'whole-atime'}


def test_an_entry_that_another_process_is_writing_is_left(entries: Path) -> None:
    with filelock.FileLock(entries / '.lockfile'):
        compilation_cache.remove_incomplete_entries(entries, lock_seconds=0.0)
    assert (entries / 'half-cache').exists()


def test_a_cache_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    compilation_cache.remove_incomplete_entries(tmp_path / 'xla')
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_compiled_programs_are_stored_where_the_user_says(tmp_path: Path) -> None:
    compile_with(JAX_COMPILATION_CACHE_DIR=str(tmp_path))
    assert list(tmp_path.glob('*compiled_by_a_command*'))


@pytest.mark.slow
def test_compiled_programs_are_stored_in_a_directory_of_limited_size(tmp_path: Path) -> None:
    stored = tmp_path / 'paxtune' / 'xla'
    compile_with(XDG_CACHE_HOME=str(tmp_path))
    # JAX writes down when an entry was used where it may have to delete the oldest.
    (time_of_use,) = stored.glob('*compiled_by_a_command*-atime')
    time_of_use.unlink()
    (program,) = stored.glob('*compiled_by_a_command*-cache')
    program.write_bytes(program.read_bytes()[:50])
    compile_with(XDG_CACHE_HOME=str(tmp_path))
    assert time_of_use.exists()
    assert program.stat().st_size > 50
