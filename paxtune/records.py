"""`trial.json`: what happened to a trial, beside its checkpoints, for people and scripts."""

import datetime
import importlib.metadata
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.directory import write_json

if TYPE_CHECKING:
    from paxtune.trial import Trial

_FILE = 'trial.json'


class TrialRecord:
    """Keeps `trial.json` up to date.

    It holds the trial's number, decisions, state and reason, its parent, every measurement, the
    fingerprints of its data, when it began and ended, at which steps it was resumed, the seconds
    that this and earlier processes spent on it, and where it ran: threads are part of that,
    since bits depend on them.

    Attributes:
        content: what is written.
        is_resumed: whether this process went on from a checkpoint.
    """

    def __init__(self, directory: Path, trial: 'Trial', data: Mapping[str, str]):
        self._path = directory / _FILE
        before = read(directory) or {}
        self._seconds_before = float(before.get('seconds', 0.0))
        self._started = _now()
        self.is_resumed = False
        self.content: dict[str, Any] = {
            'trial': trial.id,
            'state': None,
            'reason': None,
            'decisions': trial.decisions,
            'parent': trial.parent,
            'reward': None,
            'data': dict(data),
            'created': trial.created.isoformat(),
            'started': before.get('started', self._started.isoformat()),
            'ended': None,
            'resumed_from': before.get('resumed_from', []),
            'seconds': self._seconds_before,
            'machine': _machine(),
            'measurements': [],
        }
        self.write(trial)

    def resumed(self, step: int) -> None:
        """Notes that the trial went on from a checkpoint."""
        self.is_resumed = True
        self.content['resumed_from'].append(step)

    def write(self, trial: 'Trial') -> None:
        """Writes the trial as it stands now."""
        now = _now()
        self.content['seconds'] = self._seconds_before + (now - self._started).total_seconds()
        self.content |= _standing(trial)
        write_json(self._path, self.content)


def read(directory: Path) -> dict[str, Any] | None:
    """The record of the trial in a directory, or None where there is none."""
    path = directory / _FILE
    return json.loads(path.read_text()) if path.exists() else None


def settle(directory: Path, trial: 'Trial') -> None:
    """Brings the record of a terminal trial up to date, whose process died before it could."""
    content = read(directory)
    if content is not None and content['state'] != trial.state:
        write_json(directory / _FILE, content | _standing(trial))


def num_threads() -> int:
    """How many threads this process computes with: the cores that it may use."""
    if hasattr(os, 'sched_getaffinity'):  # Not on macOS.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _standing(trial: 'Trial') -> dict[str, Any]:
    return {
        'state': trial.state,
        'reason': trial.stop_reason or trial.infeasible_reason,
        'reward': trial.reward,
        'ended': trial.completed.isoformat() if trial.completed else None,
        'measurements': [
            {'step': m.step, 'reward': m.reward, 'metrics': dict(m.metrics)}
            for m in trial.measurements
        ],
    }


def _machine() -> dict[str, Any]:
    import jax

    return {
        'devices': [device.device_kind for device in jax.devices()],
        'threads': num_threads(),
        'versions': {name: importlib.metadata.version(name) for name in ('jax', 'jaxlib', 'flax')},
    }


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
