"""Metric writer: `metrics.jsonl`, one record per line, and TensorBoard scalars.

A remote store accepts only whole files, so each flush writes both files anew there.
"""

import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from etils import epath
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import RecordWriter, directory_check, register_writer_factory
from tensorboardX.summary import scalar

from trainer.runtime.directory import is_local, write_text
from trainer.runtime.metrics_file import METRICS
from trainer.symbolic.errors import UserError

_FLUSH_SECONDS = 120.0
_PROTOS: Any = event_pb2  # Generated code makes its classes at import.


class _RemoteFile:
    """A file in a remote store, written whole at each flush."""

    def __init__(self, path: epath.PathLike):
        self._path, self._content = epath.Path(path), bytearray()

    def write(self, data: bytes) -> None:
        self._content += data

    def flush(self) -> None:
        self._path.write_bytes(bytes(self._content))

    def close(self) -> None:
        self.flush()


class _Store:
    """File access of tensorboardX to a remote store. Its own access needs other credentials."""

    @staticmethod
    def directory_check(path: str) -> None:
        """There are no directories."""

    @staticmethod
    def open(path: str) -> _RemoteFile:
        return _RemoteFile(path)


register_writer_factory('gs', _Store)


class MetricWriter:
    """Writes the metrics of one run.

    Records are `{"step": 20, "time": 1.7e9, "train/loss": 2.5, …}`. TensorBoard reads the same
    from `summaries/`. A resumed run drops the records of earlier processes after its checkpoint.
    """

    def __init__(
        self, job_log_dir: epath.PathLike, resumed_from: int, scalars: epath.PathLike | None = None
    ):
        """Continues the metrics of a directory.

        Args:
            job_log_dir: directory of `metrics.jsonl`.
            resumed_from: the step after which existing records are dropped.
            scalars: directory of the TensorBoard scalars; None for `summaries/` in `job_log_dir`.
        """
        root = epath.Path(job_log_dir)
        self._path = root / METRICS
        kept = [r for r in read_metrics(self._path) if _belongs(r, resumed_from)]
        text = ''.join(json.dumps(record) + '\n' for record in kept)
        write_text(self._path, text)
        self._remote = None if is_local(root) else _RemoteFile(self._path)
        if self._remote is not None:
            self._remote.write(text.encode())
        self._flushed = time.monotonic()
        directory = root / 'summaries' if scalars is None else epath.Path(scalars)
        self._tensorboard = _Scalars(directory, resumed_from)
        for record in kept:  # TensorBoard drops the whole step, and later ones.
            if record['step'] == resumed_from:
                self._add_scalars(record)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of a step."""
        record = {'step': step, 'time': round(time.time(), 3), **metrics}
        line = json.dumps(record) + '\n'
        if self._remote is not None:
            self._remote.write(line.encode())
        else:
            with self._path.open('a') as file:
                file.write(line)
        self._add_scalars(record)
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Flushes to disk; a checkpoint relies on the records before it."""
        self._flushed = time.monotonic()
        if self._remote is not None:
            self._remote.flush()
        self._tensorboard.flush()

    def _add_scalars(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name not in ('step', 'time'):
                self._tensorboard.add(name, value, record['step'], record['time'])

    def close(self) -> None:
        """Flushes and closes the files."""
        if self._remote is not None:
            self._remote.close()
        self._tensorboard.close()


class _Scalars:
    # Written in this thread. The writer of tensorboardX has a thread that ends silently when the
    # disk is full; the run would then wait for it forever.

    def __init__(self, directory: epath.Path, resumed_from: int):
        directory_check(str(directory))
        # The step makes the name unique among files of the same second.
        name = f'events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{resumed_from:09d}'
        self._records = RecordWriter(str(directory / name))
        # TensorBoard drops steps of earlier processes from this step on.
        self._write(file_version='brain.Event:2')
        start = _PROTOS.SessionLog(status=_PROTOS.SessionLog.START)
        self._write(step=resumed_from, session_log=start)

    def add(self, name: str, value: float, step: int, seconds: float) -> None:
        self._write(summary=scalar(name, value), step=step, wall_time=seconds)

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        self._records.close()

    def _write(self, **fields: Any) -> None:
        event = _PROTOS.Event(**{'wall_time': time.time(), **fields})
        self._records.write(event.SerializeToString())


def _belongs(record: Mapping[str, Any], resumed_from: int) -> bool:
    # The evaluation at the resumed step runs again, even if its record exists.
    is_train = any(name.startswith('train/') for name in record)
    return record['step'] < resumed_from or (record['step'] == resumed_from and is_train)


def read_metrics(path: epath.PathLike) -> list[dict[str, Any]]:
    """Reads the records of a `metrics.jsonl`, without the incomplete last line of a killed run."""
    path = epath.Path(path)
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        if not isinstance(record, dict) or 'step' not in record:
            raise UserError(f'{path}: {line[:80]!r} is no record of metrics. Delete the line')
        records.append(record)
    return records
