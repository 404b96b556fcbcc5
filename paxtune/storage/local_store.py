import contextlib
import fcntl
import os
import re
import weakref
from collections.abc import Collection, Iterator
from pathlib import Path

from paxtune.storage.claims import next_claim
from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore
from paxtune.study import transitions
from paxtune.study.record import TrialRecord
from paxtune.study.store import AddSuggested
from trainer.runtime.directory import locked
from trainer.symbolic.errors import UserError

_NAME = re.compile(r'[\w.-]{1,200}')


class LocalStore(VizierStore):
    """The study of a database in this process, or in a file that several processes may share."""

    is_shared = False
    flags: list[str] = []  # The directory of the study is enough.

    def __init__(self, database: Database, name: str = 'study') -> None:
        super().__init__(database, name)
        self.worker = transitions.new_worker()
        self._held = contextlib.ExitStack()
        self._is_held = False
        weakref.finalize(self, self._held.close)

    def close(self) -> None:
        super().close()
        self.release()

    def hold(self, is_alone: bool = False) -> None:
        """Locks the directory until `release`, and shows other processes that this one is alive.

        With `is_alone` no other may write to the study. Closes the store where it raises UserError.
        """
        if self._is_held or (path := self.database.path) is None:
            return
        try:
            self._held.enter_context(locked(path.parent, is_shared=not is_alone))
            self._held.enter_context(held(path, self.worker))
        except UserError:
            self.close()
            raise
        self._is_held = True

    def release(self) -> None:
        """Unlocks the directory, until this store hands out a trial again, or is closed."""
        self._held.close()
        self._is_held = False

    def is_alive(self, worker: str) -> bool:
        if transitions.is_outside(worker) or self.database.path is None:
            return transitions.is_outside(worker) or worker == self.worker
        return holds_lock(self.database.path, worker)

    def claim(self, among: Collection[int]) -> TrialRecord | None:
        self.hold()
        with self.database.transaction():
            found = next_claim(self.trials(among), self.worker, self.is_alive)
            return None if found is None else self.apply(*found)

    @contextlib.contextmanager
    def turn(self) -> Iterator[AddSuggested]:
        def add(suggested: TrialRecord) -> TrialRecord:
            self.hold()
            return self.add_trials([suggested], after=suggested.id - 1)[0]

        yield add


@contextlib.contextmanager
def held(database: Path, worker: str) -> Iterator[None]:
    """Shows other processes that a worker is alive. The kernel unlocks that of a killed process."""
    path = _file(database, worker)
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        _leave(path, file)


def holds_lock(database: Path, worker: str) -> bool:
    """Returns True if a worker holds its lock. The file of a dead one is deleted."""
    if not _NAME.fullmatch(worker):
        return False  # No worker has such a name: another program wrote it.
    path = _file(database, worker)
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return True
    _leave(path, file)
    return False


def _leave(path: Path, file: int) -> None:
    path.unlink(missing_ok=True)
    os.close(file)


def _file(database: Path, worker: str) -> Path:
    return database.with_name(f'{database.name}-worker-{worker}')
