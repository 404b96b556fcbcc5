"""Local checkpoints of a run: in the memory or on a disk of each host, beside the durable ones.

Each process keeps its own part under `<directory>/<run>/<process>_of_<processes>/<step>`. The name
of the run is a hash of its directory, its experiment, and a random name that lies beside its
durable checkpoints. No other run, attempt or experiment thus finds its parts.
"""

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
import uuid
from pathlib import Path

from absl import logging
from etils import epath

from trainer.checkpoints import local_part
from trainer.checkpoints.checkpoint import (
    CheckpointStore,
    Frozen,
    Restored,
    completed,
    reason_of,
)
from trainer.checkpoints.end_marker import ENDED
from trainer.checkpoints.local_part import Shard
from trainer.checkpoints.manifest import DamagedError, Manifest, Progress, stored
from trainer.experiment import LocalCheckpoints
from trainer.runtime import processes
from trainer.runtime.directory import (
    LOCK_FILE,
    absolute,
    is_local,
    lock,
    read_text,
    write_json,
    write_text,
)
from trainer.runtime.home import expanded
from trainer.runtime.wall_clock import CHECKPOINTS, during
from trainer.state import TrainState
from trainer.symbolic.errors import UserError, is_disk_full

NAME = 'local_name.txt'
"""File with the random name of a run, in the directory of its durable checkpoints."""

_OWNER = 'run.json'

_KEEP = 2  # A process may be lost before it has completed the step that others have.

_MAX_AGE = 24 * 3600.0  # Seconds after which a lost run is not expected to resume.


class LocalStore:
    """The local checkpoints of one run, of this process.

    All processes call all methods alike. A checkpoint counts if each process has its part.
    """

    def __init__(self, settings: LocalCheckpoints, durable: epath.Path, record: str) -> None:
        """Opens the local checkpoints of a run, and removes those of runs that have ended.

        Args:
            durable: the directory of the durable checkpoints, which exists.
            record: the text of the experiment.

        Raises:
            UserError: the directory is not writable.
        """
        self._directory = Path(expanded(settings.directory))
        self._durable = absolute(durable)
        self._run = _name_of_run(self._durable, record)
        self._folder = self._directory / self._run
        self._home = self._folder / f'{processes.index()}_of_{processes.count()}'
        self._writing: threading.Thread | None = None
        self._has_failed = self._is_late = False
        self._lock: int | None = None
        try:
            self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = lock(self._home / LOCK_FILE)
            write_json(self._folder / _OWNER, {'checkpoints': str(self._durable)})
        except OSError as error:
            if not is_disk_full(error):
                raise UserError(
                    f'train.checkpoints.local.directory={settings.directory}: cannot write there '
                    f'({error.strerror}): name a directory that each host can write to'
                ) from error
            self._warn(error)
        _remove_others(self._directory, self._run, str(self._durable))

    @during(CHECKPOINTS)
    def save(self, step: int, state: TrainState, progress: Progress) -> None:
        """Copies the state, and writes it while training continues.

        Where a process still writes the step before, none saves this one.
        """
        if processes.agree(self._writing is not None and self._writing.is_alive()):
            if not self._is_late:
                logging.warning(
                    'Local checkpoint %d is left out, since the one before it is still being '
                    'written. A larger train.checkpoints.local.every avoids that',
                    step,
                )
            self._is_late = True
            return
        tree = dict(vars(state))
        manifest = Manifest.of(tree, progress)
        shards = local_part.copied(stored(tree))
        arguments = step, manifest, shards
        # A run that ends otherwise than by `close` waits for nothing.
        self._writing = threading.Thread(target=self._write, args=arguments, daemon=True)
        self._writing.start()

    def _write(self, step: int, manifest: Manifest, shards: list[Shard]) -> None:
        try:
            local_part.write(self._home / str(step), manifest, shards)
            for old in local_part.steps_in(self._home)[:-_KEEP]:
                shutil.rmtree(self._home / str(old))
            self._has_failed = False
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._has_failed:
            logging.warning(
                'A local checkpoint could not be written in %s (%s). Training continues with its '
                'durable checkpoints',
                self._home,
                error.strerror or error,
            )
        self._has_failed = True

    @during(CHECKPOINTS)
    def restore(
        self, abstract: TrainState, after: int, frozen: Frozen | None = None
    ) -> Restored | None:
        """Restores the newest checkpoint after a step that all processes have; None without one.

        Args:
            frozen: loads the parameters beside adapters; None where all are stored.
        """
        own = [step for step in local_part.steps_in(self._home) if step > after]
        common = set.intersection(*map(set, processes.gather(own)))
        for step in sorted(common, reverse=True):
            path = self._home / str(step)
            try:
                manifest, state = self._read(path, abstract)
                return completed(step, path, manifest, state, frozen)
            except DamagedError as error:
                logging.warning('Local checkpoint %s cannot be used: %s', path, error)
        return None

    def _read(self, path: Path, abstract: TrainState) -> tuple[Manifest, TrainState]:
        """Reads a checkpoint, with the same outcome in all processes; raises DamagedError."""
        reason, found = '', None
        try:
            found = local_part.load(path, stored(vars(abstract)))
        except UserError as error:  # Reading the durable checkpoint raises it again.
            reason = str(error)
        except Exception as error:
            reason = reason_of(error)
        if processes.agree(found is None) or found is None:
            raise DamagedError(reason or 'another process cannot read it')
        manifest, arrays = found
        manifest.verify(arrays)
        return manifest, TrainState(**arrays)

    def discard(self, after: int) -> None:
        """Removes the checkpoints after a step, from which the run resumes without them."""
        for step in local_part.steps_in(self._home):
            if step > after:
                shutil.rmtree(self._home / str(step), ignore_errors=True)

    def wait(self) -> None:
        """Waits until everything is written."""
        if self._writing is not None:
            self._writing.join()

    def close(self) -> None:
        """Waits until everything is written, and closes."""
        self.wait()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Removes all local checkpoints of this process: the run has ended, or is saved durably."""
        self.close()
        shutil.rmtree(self._home, ignore_errors=True)
        with contextlib.suppress(OSError):
            if not any(child.is_dir() for child in self._folder.iterdir()):
                shutil.rmtree(self._folder, ignore_errors=True)


def restore_newest(
    durable: CheckpointStore,
    local: LocalStore | None,
    abstract: TrainState,
    frozen: Frozen | None = None,
) -> Restored | None:
    """Restores the newest readable checkpoint, a local or a durable one; None without any.

    Raises:
        UserError: as `CheckpointStore.restore`, unless a local checkpoint is newer than all
            durable ones.
    """
    if local is None:
        return durable.restore(abstract, frozen)
    found = local.restore(abstract, durable.newest or 0, frozen)
    if found is None:
        found = durable.restore(abstract, frozen)
        if durable.newest is not None and found is not None and found.step < durable.newest:
            # Newer durable ones are damaged.
            found = local.restore(abstract, found.step, frozen) or found
    local.discard(after=0 if found is None else found.step)
    return found


def _name_of_run(durable: epath.Path, record: str) -> str:
    name = None
    if processes.is_first():
        file = durable / NAME
        if not file.exists():
            write_text(file, uuid.uuid4().hex)
        identity = json.dumps([read_text(file), str(durable), record])
        name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    found: str = processes.broadcast(name)
    return found


def _remove_others(directory: Path, run: str, durable: str) -> None:
    """Removes the folders of runs that are over, and of this run with another experiment."""
    for folder in directory.iterdir() if directory.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            owner = json.loads((folder / _OWNER).read_text())['checkpoints']
            is_other = folder.name != run and not _is_in_use(folder)
            if is_other and (owner == durable or _is_over(folder, owner)):
                shutil.rmtree(folder)


def _is_in_use(folder: Path) -> bool:
    for file in folder.glob(f'*/{LOCK_FILE}'):
        try:
            os.close(lock(file))
        except OSError:
            return True
    return False


def _is_over(folder: Path, durable: str) -> bool:
    if time.time() - folder.stat().st_mtime > _MAX_AGE:
        return True
    if not is_local(durable):
        return False
    return not Path(durable, NAME).exists() or Path(durable).with_name(ENDED).exists()
