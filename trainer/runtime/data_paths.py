"""Paths of data: on a local disk, or in a bucket.

Files in a bucket are read in ranges. Code that needs a file on a disk, such as a memory map, gets a
copy.
"""

import contextlib
import errno
import glob
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from trainer.runtime.directory import JobPath, in_bucket, is_local, partial_id
from trainer.runtime.home import expanded
from trainer.symbolic.errors import UserError


def data_path(path: str | os.PathLike[str]) -> JobPath:
    """Makes the path of data: local, with `~` expanded, or `gs://BUCKET/…`, or `s3://BUCKET/…`.

    Raises:
        UserError: the store is another one, or its library is not installed; or as `expanded`.

    Example:
        >>> data_path('gs://bucket/c4') / 'en'
        PosixGPath('gs://bucket/c4/en')
    """
    if is_local(path):
        return Path(expanded(path))
    return in_bucket(os.fspath(path), os.fspath(path))


def find(path: str | os.PathLike[str], below: bool = False) -> list[JobPath]:
    """Lists the files of a path or pattern, sorted.

    Args:
        path: a file, or a pattern as of `glob`, where `**` matches any directories.
        below: a directory stands for all files below it.

    Raises:
        UserError: the bucket cannot be read; or as `data_path`.
    """
    place = data_path(path)
    if isinstance(place, Path):
        if below and place.is_dir():
            found = list(place.rglob('*'))
        elif place.is_file():
            found = [place]
        else:
            found = [Path(match) for match in glob.iglob(str(place), recursive=True)]
        return sorted({file for file in found if file.is_file()})
    try:
        return _find_in_bucket(os.fspath(place), below)
    # The libraries of buckets, and those for their credentials, may raise anything.
    except Exception as error:
        raise UserError(f'{place} cannot be read: {_first_line(error)}') from error


def _find_in_bucket(url: str, below: bool) -> list[JobPath]:
    store, name = _store(url)
    found: dict[str, Any] = {}
    if glob.has_magic(url):
        found = store.glob(name, detail=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            info = store.info(name)
            is_file = info['type'] == 'file'
            found = {name: info} if is_file or not below else store.find(name, detail=True)
    scheme = url.partition('://')[0]
    # A console makes empty objects for directories, which end with a slash.
    files = [each for each, info in found.items() if info['type'] == 'file' and each[-1] != '/']
    return [data_path(f'{scheme}://{each}') for each in sorted(files)]


def _store(url: str) -> tuple[Any, str]:
    # Imported here: most programs read no bucket.
    from fsspec.core import url_to_fs

    store, name = url_to_fs(url)
    return store, name


def open_data(path: JobPath) -> IO[bytes]:
    """Opens a file for reading; raises OSError, also for other errors of a bucket's library."""
    if isinstance(path, Path):
        return path.open('rb')
    with _os_errors(path):
        store, name = _store(os.fspath(path))
        opened: IO[bytes] = store.open(name, 'rb')
        return opened


def version(path: JobPath) -> str:
    """Text that changes with the content of a file, without reading it; raises OSError."""
    if isinstance(path, Path):
        stat = path.stat()
        return f'{stat.st_size} {stat.st_mtime_ns}'
    with _os_errors(path):
        store, name = _store(os.fspath(path))
        return str(store.ukey(name))


def local_copy(path: JobPath) -> Path:
    """Returns a local file itself; one in a bucket as a copy, which is made once for each version.

    The copies lie in `$XDG_CACHE_HOME/paxtune/data` (`~/.cache` without the variable), for all
    processes of this machine. Nothing deletes them.

    Raises:
        OSError: the file cannot be read, or copied.
        UserError: there is no place for copies.
    """
    if isinstance(path, Path):
        return path
    key = hashlib.sha256(f'{path} {version(path)}'.encode()).hexdigest()[:32]
    cache = Path(expanded(os.environ.get('XDG_CACHE_HOME') or '~/.cache'))
    copy = cache / 'paxtune' / 'data' / key / path.name
    if copy.exists():
        return copy
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # The bucket may be private.
    partial = copy.with_name(f'.{partial_id()}.partial')
    try:
        with _os_errors(path):
            store, name = _store(os.fspath(path))
            store.get_file(name, str(partial))
        os.replace(partial, copy)
    finally:
        partial.unlink(missing_ok=True)
    return copy


@contextlib.contextmanager
def _os_errors(path: JobPath) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        reason = os.strerror(errno.ENOENT)
        raise FileNotFoundError(errno.ENOENT, reason, os.fspath(path)) from error
    except Exception as error:
        raise OSError(errno.EIO, _first_line(error), os.fspath(path)) from error


def _first_line(error: Exception) -> str:
    return f'{type(error).__name__}: {error}'.splitlines()[0]
