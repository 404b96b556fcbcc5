"""Job directories: made, locked, named and written so that a kill at any time does no harm."""

import contextlib
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyglove as pg
from etils import epath

from trainer.errors import UserError

_LOCK_FILE = 'lock'
_MAX_NAME = 80


def is_local(path: str | os.PathLike[str]) -> bool:
    """Whether `path` lies on this machine's disks, as opposed to `gs://…` and the like."""
    return '://' not in os.fspath(path)


def create(path: str | os.PathLike[str]) -> Path:
    """Makes a directory on a local disk, with its parents, or finds it there.

    Args:
        path: the value of --job_log_dir.

    Raises:
        UserError: it is not on a local disk, cannot be made, or cannot be written to.
    """
    if not is_local(path):
        raise UserError(
            f'--job_log_dir={os.fspath(path)}: name a directory on a local disk: its lock, and '
            'study.db (SQLite), need file locks, which remote stores do not have'
        )
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Permission bits do not tell about read-only file systems; an attempt does.
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        is_other = directory.exists() and not directory.is_dir()
        problem = 'it is not a directory' if is_other else error.strerror
        raise UserError(
            f'--job_log_dir={directory}: cannot write there ({problem}): '
            'name a directory that can be made and written to'
        ) from error
    return directory


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Makes the directory and holds it for this process; the kernel lets go when it dies.

    Raises:
        UserError: as `create`, and where another process holds the directory.
    """
    directory = create(path)
    # Never deleted: a lock on a deleted file keeps nobody out.
    with open(directory / _LOCK_FILE, 'a+') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(
                f'--job_log_dir={directory}: process {file.read().strip() or "(unknown)"} is '
                'working there: wait for it, or stop it'
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield directory


def trial_directory_name(number: int, decisions: Mapping[str, Any]) -> str:
    """A short, safe name that sorts by number and shows the decisions, as far as they fit.

    Args:
        number: of the trial.
        decisions: what was chosen, by its path in the experiment.

    Example:
        >>> trial_directory_name(7, {'task.learner.learning_rate': 3.14e-3, 'model.heads': 4})
        '0007-learning_rate=3.1e-03-heads=4'
    """
    name = f'{number:04d}'
    for label, value in zip(short_names(list(decisions)), decisions.values(), strict=True):
        part = re.sub(r'[^A-Za-z0-9._=+-]+', '_', f'-{label}={_shown(value)}')
        if len(name) + len(part) > _MAX_NAME:
            break
        name += part
    return name


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file so that readers find the old text or the new one, never a part of it."""
    if not is_local(path):
        epath.Path(path).write_text(text)  # A remote store writes a file whole.
        return
    path = Path(path)
    partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
    try:
        with open(partial, 'w', encoding='utf-8') as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    # The new name survives a power cut only once the directory has been written, too.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes plain data as `write_text` does."""
    write_text(path, json.dumps(value, indent=2) + '\n')


def read_json(path: str | os.PathLike[str], where: str) -> Any:
    """The plain data in a file that a person named.

    Args:
        path: of the file.
        where: the flag, or the like, for messages.

    Raises:
        UserError: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f'{where}: cannot be read: {error}') from error


def short_names(paths: list[str]) -> list[str]:
    """The shortest endings of the paths that tell them apart, indices without brackets."""
    keys = [pg.KeyPath.parse(path).keys for path in paths]
    labels = []
    for own in keys:
        length = 1
        while length < len(own) and (
            isinstance(own[-length], int)
            or sum(other[-length:] == own[-length:] for other in keys) > 1
        ):
            length += 1
        labels.append('.'.join(map(str, own[-length:])))
    return labels


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f'{value:.1e}'
    return type(value).__name__ if isinstance(value, pg.Object) else str(value)
