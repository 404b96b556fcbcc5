"""`trial.json`: the history of a trial, beside its checkpoints, for people and scripts."""

import datetime
import importlib.metadata
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from paxtune.running.device_allocation import cores
from paxtune.storage.codec import pack_trial
from paxtune.study.export import content
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import attempt_directories, attempt_directory, trial_directory
from trainer.runtime.directory import JobPath, has_link, job_path, read_text, write_json
from trainer.runtime.run_profile import Record, RunProfile, parsed, recorded
from trainer.runtime.wall_clock import Profile, WallClock, goodput
from trainer.symbolic.errors import UserError, is_disk_full

_FILE = 'trial.json'

REMEDY = 'Move that directory away, or use another --job_log_dir'


class OtherTrialError(UserError):
    """The directory of a trial holds files of another one: the study ends before it runs."""


def require_no_link(home: JobPath | None, *paths: JobPath) -> None:
    """Raises OtherTrialError if a symbolic link leads out of the directory of a study."""
    for path in paths:
        if has_link(home, path):
            raise OtherTrialError(
                f'{path} is, or is in, a symbolic link, which no search makes. {REMEDY}'
            )


class TrialJson:
    """Keeps `trial.json` up to date.

    It holds the study's record of the trial (`paxtune.study.export.content`, and for a recovery
    `record`), and the fingerprints of its data. It also holds the time of the first start, the
    steps of each resumption, the machine, and where the time went (`trainer.runtime.wall_clock`).
    Threads are part of the machine, since bits depend on them.
    A study in memory has no file.

    Attributes:
        content: data of the file that the study does not have.
        is_resumed: this process continued from a checkpoint.
        seconds_before: how long earlier processes have spent on the trial.
    """

    def __init__(self, study: StudyView, trial: Trial, num_devices: int, clock: WallClock) -> None:
        """Makes the directory of an attempt, and begins its record.

        The profile of the trial starts at the last `take` of the clock.

        Raises:
            OtherTrialError: the directory is a link, or holds another trial.
        """
        self._path, before = None, {}
        if (directory := trial.directory) is not None:
            require_no_link(study.directory, directory)
            directory.mkdir(parents=True, exist_ok=True)
            self._path, before = directory / _FILE, _own_record(directory, trial)
        self.seconds_before = max(float(before.get('seconds', 0.0)), trial.seconds)
        is_newer = self.seconds_before > trial.seconds  # The process was killed.
        clock.before = trial.record.profile
        if study.directory is not None:
            if is_newer:
                attempts = attempt_directories(study.directory, trial)
                clock.before = _last_record(before, attempts).resumed(attempts)
            # Another attempt may own `trial.json` by the time this one saves.
            RunProfile(attempt_directory(study.directory, trial), clock)
        self._clock = clock
        self._noted: Profile | None = None
        self._began = clock.read()
        self._num_devices = num_devices
        self.is_resumed = False
        self.content: dict[str, Any] = {
            'data': dict(study.data),
            'started': before.get('started', datetime.datetime.now(datetime.UTC).isoformat()),
            'resumed_from': before.get('resumed_from', []),
            'machine': machine() if num_devices else None,
        }
        self.write(trial)

    @property
    def elapsed(self) -> float:
        """The run time of this attempt in this process, in seconds."""
        return self._clock.read() - self._began

    @property
    def seconds(self) -> float:
        """The run time of the trial in all processes, in seconds."""
        return self.seconds_before + self.elapsed

    @property
    def profile(self) -> Profile:
        """The profile of the trial in all processes."""
        return self._noted or self._clock.whole

    def resumed(self, step: int) -> None:
        """Notes that the trial went on from a checkpoint."""
        self.is_resumed = True
        self.content['resumed_from'].append(step)

    def note_time(self, trial: RunningTrial) -> None:
        """Reports the run time and the number of devices to the study."""
        self._noted = self.profile
        self._clock.take()
        self._clock.before, self._clock.on_keep = {}, lambda: None
        trial.set_time(self.seconds, self._num_devices, self._noted)

    def write(self, trial: Trial) -> None:
        """Writes the trial as it stands now; where the disk is full, another time."""
        if self._path is None:
            return
        seconds = trial.seconds if trial.is_terminal else self.seconds
        time_spent = {
            'seconds': seconds,
            'profile': dict(self.profile),
            'goodput': goodput(self.profile),
            'unkept': 0.0 if self._noted else self._clock.unkept,
            'written': datetime.datetime.now(datetime.UTC).timestamp(),
        }
        _write(self._path, _recorded(trial) | time_spent | self.content)


def _last_record(before: Mapping[str, Any], attempts: Sequence[str]) -> Record:
    """The last record of a lost process: `trial.json`, or one that an attempt wrote at a save."""
    own = parsed(before) or Record({})
    saved = (recorded(job_path(attempt)) for attempt in reversed(attempts))
    last = next(filter(None, saved), own)
    return max(own, last, key=lambda each: each.written)


def _own_record(directory: JobPath, trial: Trial) -> dict[str, Any]:
    """Reads the record of a trial, if there is one; OtherTrialError if it is of another trial."""
    found, created = read(directory), trial.created.isoformat()
    if found is not None and found.get('created') != created:
        raise OtherTrialError(
            f'{directory} holds a trial of another study, or a deleted one: it was created at '
            f'{found.get("created")}, trial {trial.id} at {created}. {REMEDY}'
        )
    return found or {}


def read(directory: JobPath) -> dict[str, Any] | None:
    """Reads the record of the trial in a directory; None if there is none.

    Raises:
        UserError: another program has changed it.
    """
    path = directory / _FILE
    if not path.exists():
        return None
    try:
        found = json.loads(read_text(path))
    except (RecursionError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f'{path}: expected a JSON object, as a search writes it. Delete the file')
    return found


def is_outdated(study: StudyView, trial: Trial) -> bool:
    """Returns True if the record of a trial lacks its state, whose process died before."""
    if study.directory is None:
        return False
    directory = trial_directory(study.directory, trial)
    before = None if has_link(study.directory, directory) else read(directory)
    return before is not None and before['state'] != trial.status


def write_final_state(study: StudyView, trial: Trial) -> None:
    """Brings an outdated record up to date."""
    directory = trial_directory(study.directory, trial)
    _write(directory / _FILE, (read(directory) or {}) | _recorded(trial))


def _write(path: JobPath, content: Mapping[str, Any]) -> None:
    """Writes a record, which the study has too: it may be lost on a full disk."""
    try:
        write_json(path, content)
    except OSError as error:
        if not is_disk_full(error):
            raise
        logging.info('%s was not written: %s', path, error)


def _recorded(trial: Trial) -> dict[str, Any]:
    return content(trial) | {'record': pack_trial(trial.record)}


def num_threads() -> int:
    """Counts the cores that this process may use: the threads that it computes with."""
    return len(cores()) or os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Where this process computes."""
    import jax

    return {
        'devices': [device.device_kind for device in jax.devices()],
        'threads': num_threads(),
        'versions': {name: importlib.metadata.version(name) for name in ('jax', 'jaxlib', 'flax')},
    }
