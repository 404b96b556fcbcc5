"""Logs of the workers of a study: their place, their resources, and their lines about a trial."""

import itertools
import json
import os
from collections.abc import Iterator
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

_RESOURCES_BYTES = 2**16  # The end of a log that has the last resources.
_TRIAL_BYTES = 2**20  # The end of a log, which all trials of a worker share.
_MAX_WORKERS = 100
_MAX_CHARACTERS = 200
_MAX_LINES = 500
_HEAD = ('time', 'level', 'worker', 'attempt', 'message')
_KNOWN = (*_HEAD, 'trial', 'study', 'error')


def worker_rows(directory: JobPath | None) -> list[dict[str, Any]]:
    """Reads the last state of each worker, the newest first.

    Args:
        directory: of the study; None where only its workers know it.

    Returns:
        Rows with `worker`, `time`, `cpu_percent`, `memory_bytes`, `peak_memory_bytes`, and where
        there are devices that report it, `device_bytes` and `peak_device_bytes`.
    """
    found = (
        next(filter(None, map(_resources, reversed(records))), None)
        for records in _tails(directory, _RESOURCES_BYTES)
    )
    rows = sorted(filter(None, found), key=lambda row: str(row['time']), reverse=True)
    return rows[:_MAX_WORKERS]


def lines_about(directory: JobPath | None, trial: int) -> list[str]:
    """Returns the last lines about a trial in the logs of all workers, by time.

    Args:
        directory: of the study; None where only its workers know it.
    """
    tails = itertools.chain.from_iterable(_tails(directory, _TRIAL_BYTES))
    records = [record for record in tails if record.get('trial') == trial]
    records.sort(key=lambda record: str(record.get('time', '')))
    return [line for record in records[-_MAX_LINES:] for line in _lines(record)]


def _tails(directory: JobPath | None, size: int) -> Iterator[list[dict[str, Any]]]:
    """Reads the records in the last bytes of each log, which any process may have written."""
    if not isinstance(directory, Path) or (directory / LOGS).is_symlink():
        return
    for file in sorted((directory / LOGS).glob('*.jsonl')):
        if file.is_file() and not file.is_symlink():
            with open(file, 'rb') as opened:
                start = max(0, opened.seek(0, os.SEEK_END) - size)
                opened.seek(start)
                lines = opened.read().splitlines()
            # The first line of a tail may be half of one.
            yield [each for line in lines[start > 0 :] if (each := _record(line)) is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # A full disk cuts lines off.
        return None
    return record if isinstance(record, dict) else None


def _resources(record: dict[str, Any]) -> dict[str, Any] | None:
    if record.get('message') != RESOURCES:
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


def _lines(record: dict[str, Any]) -> list[str]:
    others = [f'{name}={value}' for name, value in record.items() if name not in _KNOWN]
    head = ' '.join([*(str(record.get(name, '')) for name in _HEAD), *others])
    return [head, *str(record.get('error', '')).splitlines()]
