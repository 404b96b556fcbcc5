"""The directory of compiled programs, which processes and commands share."""

import os
import sys
from pathlib import Path
from typing import Any

from trainer.runtime.home import expanded
from trainer.symbolic.errors import UserError

_MAX_BYTES = 4 * 2**30


def enable() -> None:
    """Shares compiled programs between processes, in $JAX_COMPILATION_CACHE_DIR or ~/.cache."""
    settings: dict[str, Any] = {
        'jax_persistent_cache_min_compile_time_secs': 0,
        'jax_persistent_cache_min_entry_size_bytes': -1,
    }
    if not os.environ.get('JAX_COMPILATION_CACHE_DIR'):
        try:
            base = expanded(os.environ.get('XDG_CACHE_HOME') or '~/.cache')
        except UserError:  # Without a home, each process compiles its programs.
            return
        directory = Path(base) / 'paxtune' / 'xla'
        remove_incomplete_entries(directory)
        settings['jax_compilation_cache_dir'] = str(directory)
        # The limit is for this directory alone. JAX stores nothing more in a directory with a
        # limit after a program without a limit has used it.
        settings['jax_compilation_cache_max_size'] = _MAX_BYTES
    for name, value in settings.items():
        if 'jax' in sys.modules:
            sys.modules['jax'].config.update(name, value)
        else:  # For when it is imported.
            os.environ[name.upper()] = str(value)


def remove_incomplete_entries(directory: Path, lock_seconds: float = 5.0) -> None:
    """Removes the entries that processes were writing when they were killed.

    JAX replaces no entry, complete or not, and stores nothing more beside one without its time of
    use, which is written last. So each later command would compile that program again, or all.

    Args:
        directory: a cache with a limit of its size.
        lock_seconds: waits so long for a process that is writing; then nothing is removed.
    """
    import filelock

    if not directory.is_dir():
        return
    try:
        # The lock of JAX itself: waits until another process has written its entry.
        with filelock.FileLock(directory / '.lockfile', timeout=lock_seconds):
            names = set(os.listdir(directory))
            for name in names:
                entry = name.removesuffix('-cache')
                if entry != name and f'{entry}-atime' not in names:
                    (directory / name).unlink()
    except (filelock.Timeout, OSError):
        return  # JAX warns of a directory that it can not use, and compiles.
