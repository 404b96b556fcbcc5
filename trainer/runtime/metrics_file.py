"""The file of metrics of a run, as others read it: without TensorBoard, which takes 30 MB."""

import json
import os
from typing import Any

from etils import epath

from trainer.runtime.directory import is_local

METRICS = 'metrics.jsonl'
"""Name of the file of metrics in the directory of a run."""

_TAIL_BYTES = 2**16


def last_training_record(path: epath.PathLike) -> dict[str, Any] | None:
    """Reads the last record of training in a `metrics.jsonl` that grows; None without any."""
    if not is_local(path) or not os.path.exists(path):
        return None
    with open(path, 'rb') as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = file.read().split(b'\n')[:-1]
    # The first line of the tail may be half of one, and the last one is of an evaluation, or none.
    whole = lines[size > _TAIL_BYTES :]
    return next((json.loads(line) for line in reversed(whole) if b'"train/' in line), None)
