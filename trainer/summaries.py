"""Metrics on disk: `metrics.jsonl`, a line a record, and TensorBoard scalars."""

import json
import time
from collections.abc import Mapping
from typing import Any

from etils import epath
from tensorboardX import SummaryWriter

from trainer.directory import write_text


class Summaries:
    """Writes the metrics of one run.

    Records are `{"step": 20, "time": 1.7e9, "train/loss": 2.5, …}`. TensorBoard reads the same
    from `summaries/`. A resumed run drops what an earlier process wrote beyond its checkpoint.
    """

    def __init__(self, job_log_dir: epath.PathLike, resumed_from: int):
        root = epath.Path(job_log_dir)
        self._path = root / 'metrics.jsonl'
        kept = [r for r in read_metrics(self._path) if _belongs(r, resumed_from)]
        write_text(self._path, ''.join(json.dumps(record) + '\n' for record in kept))
        self._tensorboard = SummaryWriter(
            str(root / 'summaries'),
            purge_step=resumed_from,
            # Two files of one second would have one name, and the later one win.
            filename_suffix=f'.{resumed_from:09d}',
        )
        for record in kept:  # TensorBoard drops the whole step, and later ones.
            if record['step'] == resumed_from:
                self._add_scalars(record)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of a step."""
        record = {'step': step, 'time': round(time.time(), 3), **metrics}
        with self._path.open('a') as file:
            file.write(json.dumps(record) + '\n')
        self._add_scalars(record)

    def flush(self) -> None:
        """Puts on disk what was written, as a checkpoint relies on it."""
        self._tensorboard.flush()

    def _add_scalars(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name not in ('step', 'time'):
                self._tensorboard.add_scalar(name, value, record['step'], record['time'])

    def close(self) -> None:
        self._tensorboard.close()


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
