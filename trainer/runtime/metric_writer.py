"""Metrics on disk: `metrics.jsonl`, a line a record, and TensorBoard scalars.

A remote store takes files whole, so there both are written anew each time that they are flushed.
"""

import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from etils import epath
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import (
    RecordWriter,
    directory_check,
    register_writer_factory,
)
from tensorboardX.summary import scalar

from trainer.runtime.directory import is_local, write_text

METRICS = 'metrics.jsonl'
"""The name of the file of metrics, in the directory of a run."""

_FLUSH_SECONDS = 120.0
_PROTOS: Any = event_pb2  # Generated code makes its classes when it is imported.


class _Whole:
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
    """How tensorboardX opens files in a remote store. Its own way needs other credentials."""

    @staticmethod
    def directory_check(path: str) -> None:
        """There are no directories."""

    @staticmethod
    def open(path: str) -> _Whole:
        return _Whole(path)


register_writer_factory('gs', _Store)


class MetricWriter:
    """Writes the metrics of one run.

    Records are `{"step": 20, "time": 1.7e9, "train/loss": 2.5, …}`. TensorBoard reads the same
    from `summaries/`. A resumed run drops what an earlier process wrote beyond its checkpoint.
    """

    def __init__(
        self, job_log_dir: epath.PathLike, resumed_from: int, scalars: epath.PathLike | None = None
    ):
        """Goes on with the metrics of a directory.

        Args:
            job_log_dir: where `metrics.jsonl` is.
            resumed_from: the step from which on they are written anew.
            scalars: where those for TensorBoard are, if not in `summaries/` beside it.
        """
        root = epath.Path(job_log_dir)
        self._path = root / METRICS
        kept = [r for r in read_metrics(self._path) if _belongs(r, resumed_from)]
        text = ''.join(json.dumps(record) + '\n' for record in kept)
        write_text(self._path, text)
        self._whole = None if is_local(root) else _Whole(self._path)
        if self._whole is not None:
            self._whole.write(text.encode())
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
        if self._whole is not None:
            self._whole.write(line.encode())
        else:
            with self._path.open('a') as file:
                file.write(line)
        self._add_scalars(record)
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Puts on disk what was written, as a checkpoint relies on it."""
        self._flushed = time.monotonic()
        if self._whole is not None:
            self._whole.flush()
        self._tensorboard.flush()

    def _add_scalars(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name not in ('step', 'time'):
                self._tensorboard.add(name, value, record['step'], record['time'])

    def close(self) -> None:
        """Puts on disk what was written, and lets go of the files."""
        if self._whole is not None:
            self._whole.close()
        self._tensorboard.close()


class _Scalars:
    """A file of scalars for TensorBoard.

    It is written in this thread. The thread that tensorboardX's own writer has ends without a word
    when the disk is full, and then the run waits for it, for ever.
    """

    def __init__(self, directory: epath.Path, resumed_from: int):
        directory_check(str(directory))
        # Two files of one second would have one name, and the later one win.
        name = f'events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{resumed_from:09d}'
        self._records = RecordWriter(str(directory / name))
        # TensorBoard drops the steps from this one on that an earlier process wrote.
        self._write(file_version='brain.Event:2')
        start = _PROTOS.SessionLog(status=_PROTOS.SessionLog.START)
        self._write(step=resumed_from, session_log=start)

    def add(self, name: str, value: float, step: int, seconds: float) -> None:
        """Writes a scalar of a step, and when it was measured."""
        self._write(summary=scalar(name, value), step=step, wall_time=seconds)

    def flush(self) -> None:
        """Puts on disk what was written."""
        self._records.flush()

    def close(self) -> None:
        """Puts on disk what was written, and closes the file."""
        self._records.close()

    def _write(self, **fields: Any) -> None:
        event = _PROTOS.Event(**{'wall_time': time.time(), **fields})
        self._records.write(event.SerializeToString())


def _belongs(record: Mapping[str, Any], resumed_from: int) -> bool:
    # The evaluation at the resumed step is run again, whether or not it had been written.
    is_train = any(name.startswith('train/') for name in record)
    return record['step'] < resumed_from or (record['step'] == resumed_from and is_train)


def read_metrics(path: epath.PathLike) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`; a last line that a killed process left half is dropped."""
    path = epath.Path(path)
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records
