"""Locks of workers: each locks a file of its own beside the database, until it ends."""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r'[\w.-]{1,200}')


@contextlib.contextmanager
def held(database: Path, worker: str) -> Iterator[None]:
    """Shows other processes that a worker is alive. The kernel unlocks that of a killed process."""
    path = _file(database, worker)
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        _leave(path, file)


def is_alive(database: Path, worker: str) -> bool:
    """Returns True if a worker holds its lock. The file of a dead one is deleted."""
    if not _NAME.fullmatch(worker):
        return False  # No worker has such a name: another program wrote it.
    path = _file(database, worker)
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return True
    _leave(path, file)
    return False


def _leave(path: Path, file: int) -> None:
    path.unlink(missing_ok=True)
    os.close(file)


def _file(database: Path, worker: str) -> Path:
    return database.with_name(f'{database.name}-worker-{worker}')
