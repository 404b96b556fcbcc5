import contextlib
import datetime
from collections.abc import Callable, Iterator

from paxtune.storage import worker_locks
from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore
from paxtune.study import transitions
from paxtune.study.record import Snapshot, Status, TrialRecord
from paxtune.study.store import AddSuggested
from paxtune.study.transitions import TurnLostError


class LocalStore(VizierStore):
    """The study of a database in this process, or in a file that several processes may share."""

    is_shared = False
    flags: list[str] = []  # The directory of the study is enough.

    def __init__(self, database: Database, name: str = 'study') -> None:
        super().__init__(database, name)
        self.worker = transitions.new_worker()
        self._release: Callable[[], object] | None = None

    def close(self) -> None:
        super().close()
        if self._release is not None:
            self._release()

    def _hold(self) -> None:
        """Shows other processes that this one is alive, until the store is closed."""
        if self._release is None and self.database.path is not None:
            self._release = worker_locks.hold(self.database.path, self.worker, self)

    def is_alive(self, worker: str) -> bool:
        if transitions.is_outside(worker) or self.database.path is None:
            return transitions.is_outside(worker) or worker == self.worker
        return worker_locks.is_alive(self.database.path, worker)

    def claim(self) -> TrialRecord | None:
        self._hold()
        # A trial that was claimed before, and whose process is gone, comes first.
        with self.database.transaction():
            waiting = [each for each in self.trials() if not each.status.has_ended]
            snapshot = transitions.unended(waiting)
            adrift = [
                each
                for each in waiting
                if each.status is Status.ACTIVE and not self.is_alive(each.holder)
            ]
            requested = [each for each in waiting if each.status is Status.REQUESTED]
            for each in adrift + requested:
                return self.apply(each.id, lambda record, now: self._claim(record, snapshot, now))
        return None

    def _claim(
        self, record: TrialRecord, snapshot: Snapshot, now: datetime.datetime
    ) -> TrialRecord:
        if record.holder not in ('', self.worker):
            # This never counts: a person starts the search again each time.
            record = transitions.add_event(record, 'lost', now, detail='the search was killed')
        return transitions.claim(record, self.worker, snapshot, now)

    @contextlib.contextmanager
    def turn(self) -> Iterator[AddSuggested]:
        def add(suggested: TrialRecord) -> TrialRecord:
            self._hold()
            with self.database.transaction():
                if suggested.id != self.max_id() + 1:
                    raise TurnLostError('trials were added in the meantime')
                return self.add_trials([suggested])[0]

        yield add
