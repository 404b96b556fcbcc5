"""TensorBoard's event files, on a local disk or in a remote store."""

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from etils import epath

from trainer.runtime.directory import is_local, partial_id


@contextlib.contextmanager
def _hidden(*modules: str) -> Iterator[None]:
    """Lets imports of modules fail, unless they are imported already."""
    new: dict[str, Any] = dict.fromkeys(name for name in modules if name not in sys.modules)
    sys.modules.update(new)
    try:
        yield
    finally:
        for name in new:
            del sys.modules[name]


# The clients of object stores take three quarters of its import, and `_Store` replaces them.
with _hidden('boto3', 'google.cloud.storage'):
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import RecordWriter, directory_check, register_writer_factory
    from tensorboardX.summary import scalar, text

_PROTOS: Any = event_pb2  # Generated code makes its classes at import.


class RemoteFile:
    """A file in a remote store, written whole at each flush."""

    def __init__(self, path: epath.PathLike):
        self._path, self._content = epath.Path(path), bytearray()

    def write(self, data: bytes) -> None:
        """Adds bytes to its end."""
        self._content += data

    def flush(self) -> None:
        """Writes the whole file."""
        self._path.write_bytes(bytes(self._content))

    def close(self) -> None:
        """Writes the whole file a last time."""
        self.flush()


class _Store:
    """File access of tensorboardX to a remote store. Its own access needs other credentials."""

    @staticmethod
    def directory_check(path: str) -> None:
        """There are no directories."""

    @staticmethod
    def open(path: str) -> RemoteFile:
        return RemoteFile(path)


register_writer_factory('gs', _Store)


class EventFile:
    """One event file. This thread writes it.

    The writer of tensorboardX has a thread that ends silently when the disk is full; the run would
    then wait for it forever.
    """

    def __init__(self, path: epath.PathLike) -> None:
        """Begins a file, and makes its directory, which is a run of TensorBoard."""
        directory_check(str(epath.Path(path).parent))
        self._records = RecordWriter(str(path))
        self._write(file_version='brain.Event:2')

    def restart(self, step: int) -> None:
        """Makes TensorBoard drop the events of earlier files from a step on."""
        start = _PROTOS.SessionLog(status=_PROTOS.SessionLog.START)
        self._write(step=step, session_log=start)

    def scalar(self, name: str, value: float, step: int, seconds: float | None = None) -> None:
        """Adds a number, by default as of now."""
        self.summary(scalar(name, value), step, seconds)

    def text(self, name: str, markdown: str, step: int) -> None:
        """Adds a text."""
        self.summary(text(name, markdown), step)

    def summary(self, summary: Any, step: int = 0, seconds: float | None = None) -> None:
        """Adds a summary as tensorboardX makes it."""
        wall_time = time.time() if seconds is None else seconds
        self._write(summary=summary, step=step, wall_time=wall_time)

    def flush(self) -> None:
        """Writes buffered events."""
        self._records.flush()

    def close(self) -> None:
        """Writes buffered events, and closes the file."""
        self._records.close()

    def _write(self, **fields: Any) -> None:
        event = _PROTOS.Event(**{'wall_time': time.time(), **fields})
        self._records.write(event.SerializeToString())


def event_path(directory: epath.PathLike, suffix: str) -> epath.Path:
    """Makes the path of a new file, which sorts by time.

    Args:
        directory: of the file.
        suffix: distinguishes the files that one host begins in the same second.
    """
    name = f'events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{suffix}'
    return epath.Path(directory) / name


def replace_event_file(path: epath.PathLike, summary: Any) -> None:
    """Writes a file of one summary, in place of another; readers see one of them whole."""
    path = epath.Path(path)
    partial = path.with_name(f'.{partial_id()}.partial') if is_local(path) else path
    file = EventFile(partial)
    file.summary(summary)
    file.close()
    if partial != path:
        partial.replace(path)


def has_events(directory: epath.PathLike) -> bool:
    """Returns True if a directory has event files."""
    root = epath.Path(directory)
    return root.exists() and any('tfevents' in each.name for each in root.iterdir())
