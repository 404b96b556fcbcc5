"""Job directories: made, locked, named and written so that a kill at any time does no harm."""

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyglove as pg
from etils import epath

from trainer.symbolic.errors import UserError

JobPath = Path | epath.Path
"""A path in the directory of a job: on a local disk, or in a store."""

_LOCK_FILE = 'lock'
_MAX_NAME = 80


def is_local(path: str | os.PathLike[str]) -> bool:
    """Whether `path` lies on this machine's disks, as opposed to `gs://…` and the like."""
    return '://' not in os.fspath(path)


def job_path(path: str | os.PathLike[str]) -> JobPath:
    """The directory of a job, on a local disk or in Google Cloud Storage. Nobody is called yet.

    To be called before anything else is looked for in such a store.

    Args:
        path: the value of --job_log_dir.

    Raises:
        UserError: it is in another store, or what speaks with the store is not installed.
    """
    if is_local(path):
        return Path(path)
    if not os.fspath(path).startswith('gs://'):
        raise UserError(
            f'--job_log_dir={os.fspath(path)}: name a directory on a local disk, or '
            'gs://BUCKET/DIRECTORY'
        )
    if importlib.util.find_spec('gcsfs') is None:
        raise UserError(
            f"--job_log_dir={os.fspath(path)}: gs:// needs gcsfs: pip install 'paxtune[gcs]'"
        )
    import fsspec.config
    from etils.epath import gpath

    # epath would else go through TensorFlow, which takes seconds to import. It asks once, whatever
    # path it is first used for.
    os.environ.setdefault('EPATH_USE_TF', 'false')
    gpath._is_tf_installed.cache_clear()
    # Other processes write there, too, so what a directory holds is never remembered.
    fsspec.config.conf.setdefault('gs', {})['use_listings_cache'] = False
    return epath.Path(path)


def absolute(path: epath.PathLike) -> epath.Path:
    """A path that stays the same in another working directory. Those in a store all do."""
    path = epath.Path(path)
    return path.absolute() if is_local(path) else path


def create(path: str | os.PathLike[str]) -> JobPath:
    """Makes the directory of a job, with its parents, or finds it there.

    Args:
        path: the value of --job_log_dir.

    Raises:
        UserError: it cannot be made, or cannot be written to.
    """
    directory = job_path(path)
    return _created(directory) if isinstance(directory, Path) else _found_in_store(directory)


def _found_in_store(directory: epath.Path) -> epath.Path:
    # A store has no empty directories. Whoever trains there must be able to delete, too.
    probe = directory / f'.{uuid.uuid4().hex}'
    try:
        probe.write_bytes(b'')
        probe.unlink()
    # Whatever gcsfs raises, or what it asks for credentials.
    except Exception as error:
        missing = isinstance(error, FileNotFoundError)
        reason = f'{type(error).__name__}: {error}'.splitlines()[0]
        raise UserError(
            f'--job_log_dir={directory}: cannot write there '
            f'({"there is no such bucket" if missing else reason}): name a directory in a bucket '
            'that is there, in which you may write and delete'
        ) from error
    return directory


def _created(directory: Path) -> Path:
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
        UserError: as `create`, where another process holds the directory, and where it is not on a
            local disk.
    """
    if not is_local(path):
        raise UserError(
            f'--job_log_dir={os.fspath(path)}: name a directory on a local disk: its lock, and '
            'study.db (SQLite), need file locks, which remote stores do not have'
        )
    directory = _created(Path(path))
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
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """The same with bytes."""
    if not is_local(path):
        epath.Path(path).write_bytes(content)  # A remote store writes a file whole.
        return
    path = Path(path)
    partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
    try:
        with open(partial, 'wb') as file:
            file.write(content)
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
