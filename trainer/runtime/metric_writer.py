"""Metric writer: `metrics.jsonl`, one record per line, and TensorBoard scalars.

A remote store accepts only whole files, so each flush writes both files again there.
"""

import json
import time
from collections.abc import Mapping
from typing import Any

from etils import epath

from trainer.runtime.directory import is_local, write_text
from trainer.runtime.event_file import EventFile, RemoteFile, event_path, has_events
from trainer.runtime.metrics_file import METRICS
from trainer.symbolic.errors import UserError

_FLUSH_SECONDS = 120.0


class MetricWriter:
    """Writes the metrics of one run.

    Records are `{"step": 20, "time": 1.7e9, "train/loss": 2.5, …}`. TensorBoard reads the same
    from `summaries/`. A resumed run drops the records of earlier processes after its checkpoint.

    Attributes:
        has_texts: whether an earlier process wrote the texts of this run.
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
        self._remote = None if is_local(root) else RemoteFile(self._path)
        if self._remote is not None:
            self._remote.write(text.encode())
        self._flushed = time.monotonic()
        directory = root / 'summaries' if scalars is None else epath.Path(scalars)
        self.has_texts = resumed_from > 0 and has_events(directory)
        # The step makes the name unique among files of the same second.
        self._tensorboard = EventFile(event_path(directory, f'{resumed_from:09d}'))
        self._tensorboard.restart(resumed_from)
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

    def write_texts(self, texts: Mapping[str, str], step: int) -> None:
        """Writes texts for TensorBoard, in Markdown."""
        for name, text in texts.items():
            self._tensorboard.text(name, text, step)

    def flush(self) -> None:
        """Flushes to disk; a checkpoint relies on the records before it."""
        self._flushed = time.monotonic()
        if self._remote is not None:
            self._remote.flush()
        self._tensorboard.flush()

    def _add_scalars(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name not in ('step', 'time'):
                self._tensorboard.scalar(name, value, record['step'], record['time'])

    def close(self) -> None:
        """Flushes and closes the files."""
        if self._remote is not None:
            self._remote.close()
        self._tensorboard.close()


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
