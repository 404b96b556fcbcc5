"""The log of a trial, from the logs of its workers."""

import json
import os
from pathlib import Path
from typing import Any

from paxtune.running.json_logs import LOGS
from trainer.runtime.directory import JobPath

_TAIL_BYTES = 2**20  # The end of the log that all trials of a worker share.
_MAX_LINES = 500
_HEAD = ('time', 'level', 'worker', 'attempt', 'message')
_KNOWN = (*_HEAD, 'trial', 'study', 'error')


def log_of(directory: JobPath | None, trial: int) -> list[str]:
    """Returns the last lines about a trial in the logs of the workers of a study, by time.

    Args:
        directory: of the study; None where only its workers know it.
    """
    if not isinstance(directory, Path):
        return []
    records = [
        record
        for file in sorted((directory / LOGS).glob('*.jsonl'))
        if not file.is_symlink()
        for record in _records(file)
        if record.get('trial') == trial
    ]
    records.sort(key=lambda record: str(record.get('time', '')))
    return [line for record in records[-_MAX_LINES:] for line in _lines(record)]


def _records(file: Path) -> list[dict[str, Any]]:
    with open(file, 'rb') as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - _TAIL_BYTES))
        lines = opened.read().splitlines()
    records = []
    # The first line of a tail may be half of one; a full disk cuts lines off.
    for line in lines[size > _TAIL_BYTES :]:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def _lines(record: dict[str, Any]) -> list[str]:
    others = [f'{name}={value}' for name, value in record.items() if name not in _KNOWN]
    head = ' '.join([*(str(record.get(name, '')) for name in _HEAD), *others])
    return [head, *str(record.get('error', '')).splitlines()]
