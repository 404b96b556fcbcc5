"""The wall clock of a run over all of its processes, in a file in its directory."""

import json
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from absl import logging
from etils import epath

from trainer.runtime.directory import JobPath, read_text, write_json
from trainer.runtime.metrics_file import METRICS, last_training_record
from trainer.runtime.wall_clock import Profile, WallClock, after_loss, goodput, profile_text
from trainer.symbolic.errors import is_disk_full

FILE = 'wall_clock.json'
"""Name of the file: the goodput, the profile, and the fields of `Record`."""

_INTERVAL = 1.0  # Seconds between two writes, which take milliseconds.


class Record(NamedTuple):
    """The wall clock of a run as a process has recorded it.

    Attributes:
        profile: of all processes so far.
        written: when, in seconds since 1970; 0 if unknown.
        unkept: seconds of its steps that no checkpoint had; None after an orderly end.
    """

    profile: Profile
    written: float = 0.0
    unkept: float | None = None

    def resumed(self, runs: Iterable[epath.PathLike]) -> Profile:
        """The profile with which another process continues.

        Args:
            runs: directories with the metrics of the run, which show how long a lost process has
                gone on after its last record.
        """
        if self.unkept is None:
            return self.profile
        silent = max((_silent_seconds(each, self.written) for each in runs), default=0.0)
        return after_loss(self.profile, self.unkept, silent)


class RunProfile:
    """Keeps `wall_clock.json` up to date: after checkpoints, and at an orderly end."""

    def __init__(self, job_log_dir: JobPath, clock: WallClock) -> None:
        """Begins to record a clock, whose `before` has the earlier processes.

        Args:
            job_log_dir: the directory of the run, which exists when it saves a checkpoint.
        """
        self._path, self._clock = job_log_dir / FILE, clock
        self._written = time.monotonic()
        clock.on_keep = self._kept

    def _kept(self) -> None:
        if time.monotonic() - self._written > _INTERVAL:
            self.write()

    def write(self, has_ended: bool = False) -> None:
        """Writes the record as it is now; the last one is that of an orderly end."""
        self._written, profile = time.monotonic(), self._clock.whole
        record = {'goodput': goodput(profile), 'profile': profile, 'written': time.time()}
        record |= {} if has_ended else {'unkept': self._clock.unkept}
        try:
            write_json(self._path, record)
        except OSError as error:
            if not is_disk_full(error):
                raise
            logging.info('%s was not written: %s', self._path, error)

    def close(self) -> str:
        """Ends the record, and renders it on one line."""
        self.write(has_ended=True)
        return profile_text(self._clock.whole, 'Wall clock of this run')


def recorded(job_log_dir: JobPath) -> Record | None:
    """Reads the record of a run; None where it is missing or damaged: it is for people alone."""
    try:
        return parsed(json.loads(read_text(job_log_dir / FILE)))
    except (OSError, ValueError, RecursionError):
        return None


def parsed(found: Any) -> Record | None:
    """Reads a record from JSON data; None if it is something else.

    Example:
        >>> parsed({'profile': {'steps': 2}, 'written': 1.7e9})
        Record(profile={'steps': 2.0}, written=1700000000.0, unkept=None)
    """
    try:
        profile = {str(name): float(each) for name, each in found['profile'].items()}
        unkept = float(found['unkept']) if 'unkept' in found else None
        return Record(profile, float(found.get('written', 0.0)), unkept)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _silent_seconds(job_log_dir: epath.PathLike, since: float) -> float:
    """Seconds from the last record of a lost process to its last summary; 0 if unknown."""
    record = last_training_record(epath.Path(job_log_dir) / METRICS) or {}
    return max(0.0, float(record['time']) - since) if since and 'time' in record else 0.0
