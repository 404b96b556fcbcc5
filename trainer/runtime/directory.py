import contextlib
import fcntl
import json
import os
import re
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyglove as pg
from etils import epath

from trainer.runtime.home import expanded
from trainer.symbolic import extras
from trainer.symbolic.errors import UserError

JobPath = Path | epath.Path
"""A path in the directory of a job: on a local disk, or in a remote store."""

LOCK_FILE = 'lock'
"""The file whose lock a process holds that works in its directory."""

MAX_JSON_BYTES = 2**27
"""Size limit of a JSON file of people. Read, it may take twenty times as much."""

_MAX_NAME_LENGTH = 80
_STORES = {'gs': ('gcsfs', 'gcs'), 's3': ('s3fs', 's3')}  # The library and the extra of each.


def is_local(path: str | os.PathLike[str]) -> bool:
    """True if `path` is on a disk of this machine, and not of the form `gs://…`."""
    return '://' not in os.fspath(path)


def has_link(home: JobPath | None, path: JobPath) -> bool:
    """Returns True if a symbolic link leads from below a directory to a path in it."""
    if not isinstance(home, Path) or not isinstance(path, Path):
        return False  # A remote store has none.
    return path.resolve() != home.resolve() / path.relative_to(home)


def job_path(path: str | os.PathLike[str]) -> JobPath:
    """Makes the path of a job directory, on a local disk (with `~` expanded) or in Google's store.

    Configures access to the store without contacting it. Call it before any other access. Orbax
    and the locks of checkpoints know no other store.

    Raises:
        UserError: the store is another one, or gcsfs is not installed; or as `expanded`.
    """
    if is_local(path):
        return Path(expanded(path))
    if not os.fspath(path).startswith('gs://'):
        raise UserError(
            f'--job_log_dir={os.fspath(path)}: name a directory on a local disk, or '
            'gs://BUCKET/DIRECTORY. Only data may be in S3'
        )
    return in_bucket(os.fspath(path), f'--job_log_dir={os.fspath(path)}')


def in_bucket(path: str, setting: str) -> epath.Path:
    """Makes the path of an object in a bucket, and configures access without contacting it.

    Args:
        path: such as `gs://BUCKET/OBJECT` or `s3://BUCKET/OBJECT`.
        setting: the text of the user, for messages.

    Raises:
        UserError: the store is another one, or its library is not installed.
    """
    scheme = path.partition('://')[0]
    if scheme not in _STORES:
        raise UserError(f'{setting}: expected a local path, gs://BUCKET/… or s3://BUCKET/…')
    library, extra = _STORES[scheme]
    extras.require(extra, f'{setting}: {scheme}://', library)
    import fsspec.config
    from etils.epath import gpath

    # By default epath uses TensorFlow, which takes seconds to import. It decides once, at the
    # first use of any path.
    os.environ.setdefault('EPATH_USE_TF', 'false')
    gpath._is_tf_installed.cache_clear()
    # Other processes write there, too, so directory listings are not cached.
    fsspec.config.conf.setdefault(scheme, {})['use_listings_cache'] = False
    return epath.Path(path)


def absolute(path: epath.PathLike) -> epath.Path:
    """Makes a local path absolute, with `~` expanded; paths in a store are."""
    path = epath.Path(expanded(path))
    return path.absolute() if is_local(path) else path


def create(path: str | os.PathLike[str]) -> JobPath:
    """Makes the directory of a job, with its parents, unless it exists.

    Raises:
        UserError: the directory cannot be made, or is not writable.
    """
    directory = job_path(path)
    return _created(directory) if isinstance(directory, Path) else _writable_in_store(directory)


def _writable_in_store(directory: epath.Path) -> epath.Path:
    # A store has no empty directories. Training needs the permission to delete, too.
    probe = directory / f'.{uuid.uuid4().hex}'
    try:
        probe.write_bytes(b'')
        probe.unlink()
    # gcsfs, and the library for its credentials, may raise anything.
    except Exception as error:
        missing = isinstance(error, FileNotFoundError)
        reason = f'{type(error).__name__}: {error}'.splitlines()[0]
        raise UserError(
            f'--job_log_dir={directory}: cannot write there '
            f'({"there is no such bucket" if missing else reason}): name a directory in a bucket '
            'that exists, in which you may write and delete'
        ) from error
    return directory


def _created(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Permission bits ignore read-only file systems; a test file does not.
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
def locked(path: str | os.PathLike[str], is_shared: bool = False) -> Iterator[Path]:
    """Makes the directory and locks it for this process; the kernel unlocks it at process exit.

    Args:
        path: the directory.
        is_shared: whether others may hold such a lock, too.

    Raises:
        UserError: as `create`, and if another process holds the lock, or the directory is not on
            a local disk.
    """
    if not is_local(path):
        raise UserError(
            f'--job_log_dir={os.fspath(path)}: name a directory on a local disk: its lock, and '
            'study.db (SQLite), need file locks, which remote stores do not have'
        )
    directory = _created(Path(expanded(path)))
    file = directory / LOCK_FILE
    try:
        held = lock(file, is_shared)
    except BlockingIOError:
        raise UserError(
            f'--job_log_dir={directory}: process {file.read_text().strip() or "(unknown)"} is '
            'working there: wait for it, or stop it'
        ) from None
    except OSError as error:  # A symbolic link, say.
        raise UserError(f'{file}: cannot be locked: {error.strerror}') from error
    try:
        yield directory
    finally:
        os.close(held)


def lock(file: Path, is_shared: bool = False) -> int:
    """Locks a file until the returned descriptor is closed; raises BlockingIOError, OSError.

    Nothing deletes the file: a lock on a deleted file excludes no process.
    """
    held = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(held, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise
    os.truncate(held, 0)
    os.write(held, str(os.getpid()).encode())
    return held


def trial_directory_name(number: int, decisions: Mapping[str, Any]) -> str:
    """Makes a short, safe name that sorts by number and contains the decisions that fit.

    Example:
        >>> trial_directory_name(7, {'task.learner.learning_rate': 3.14e-3, 'model.heads': 4})
        '0007-learning_rate=3.1e-03-heads=4'
    """
    name = f'{number:04d}'
    for label, value in zip(short_names(list(decisions)), decisions.values(), strict=True):
        part = re.sub(r'[^A-Za-z0-9._=+-]+', '_', f'-{label}={_abbreviated(value)}')
        if len(name) + len(part) > _MAX_NAME_LENGTH:
            break
        name += part
    return name


def partial_id() -> str:
    """Makes a name that no other partial file has: of this host, this process, and a UUID.

    A process id alone is not enough in a directory that several machines or containers share.
    """
    return f'{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex}'


def is_folder_name(name: str) -> bool:
    """Returns True if a name has only letters, digits, _ and -, so that it names one folder."""
    return name.replace('_', '').replace('-', '').isalnum()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file atomically: readers see the old text or the new one."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file of bytes atomically."""
    if not is_local(path):
        epath.Path(path).write_bytes(content)  # A remote store writes a file whole.
        return
    path = Path(path)
    partial = path.with_name(f'.{path.name}.{partial_id()}.partial')
    try:
        with open(partial, 'wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    # The new name survives a power cut only once the directory is written, too.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes plain data as `write_text` does."""
    write_text(path, json.dumps(value, indent=2) + '\n')


def read_text(path: JobPath, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Reads a text that any program may have written; raises OSError, or ValueError if too long."""
    with path.open('rb') as file:
        content: Any = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f'it has more than {max_bytes:,} bytes')
    return str(content, 'utf-8')


def read_json(path: str | os.PathLike[str], where: str, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Reads plain data from a file that the user named; raises UserError if that fails."""
    try:
        return json.loads(read_text(Path(expanded(path)), max_bytes))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f'{where}: cannot be read: {error}') from error


def short_names(paths: list[str]) -> list[str]:
    """Shortens paths to their shortest unique endings, with indices without brackets."""
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


def _abbreviated(value: Any) -> str:
    if isinstance(value, float):
        return f'{value:.1e}'
    return type(value).__name__ if isinstance(value, pg.Object) else str(value)
