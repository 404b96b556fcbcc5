"""Logs of the workers of a study: their place, and the resources in their last lines."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.runtime.directory import JobPath

LOGS = 'logs'
"""Where the logs of workers are, in the directory of a study."""

RESOURCES = 'resources'
"""The message of lines about the resources of a worker."""

NUMBERS = (
    'cpu_percent', 'memory_bytes', 'peak_memory_bytes', 'device_bytes', 'peak_device_bytes'
)  # fmt: skip
"""The numbers of such a line."""

_TAIL_BYTES = 2**16
_MAX_WORKERS = 100
_MAX_CHARACTERS = 200


def worker_rows(directory: JobPath | None) -> list[dict[str, Any]]:
    """Reads the last state of each worker, the newest first.

    Args:
        directory: of the study; None where only its workers know it.

    Returns:
        Rows with `worker`, `time`, `cpu_percent`, `memory_bytes`, `peak_memory_bytes`, and where
        there are devices that report it, `device_bytes` and `peak_device_bytes`.
    """
    if not isinstance(directory, Path):
        return []
    folder = directory / LOGS
    if folder.is_symlink():
        return []
    files = [each for each in folder.glob('*.jsonl') if each.is_file() and not each.is_symlink()]
    found = [_last(each) for each in files]
    rows = sorted(filter(None, found), key=lambda row: str(row['time']), reverse=True)
    return rows[:_MAX_WORKERS]


def _last(file: Path) -> dict[str, Any] | None:
    with open(file, 'rb') as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - _TAIL_BYTES))
        lines = opened.read().splitlines()
    for line in reversed(lines):
        if RESOURCES.encode() in line and (row := _row(line)) is not None:
            return row
    return None


def _row(line: bytes) -> dict[str, Any] | None:
    """Reads a line of JSON; None if another process wrote something else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, Mapping) or record.get('message') != RESOURCES:
        return None
    texts = {name: record.get(name) for name in ('worker', 'time')}
    numbers = {name: record[name] for name in NUMBERS if name in record}
    if not all(isinstance(own, str) and _is_name(own) for own in texts.values()):
        return None
    if not all(type(each) in (int, float) and 0 <= each < 2**60 for each in numbers.values()):
        return None
    return texts | numbers


def _is_name(text: str) -> bool:
    return len(text) <= _MAX_CHARACTERS and text.isprintable()
