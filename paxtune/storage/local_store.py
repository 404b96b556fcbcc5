import contextlib
import datetime
from collections.abc import Iterator

from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore
from paxtune.study import transitions
from paxtune.study.record import Snapshot, Status, TrialRecord
from paxtune.study.store import AddSuggested
from paxtune.study.transitions import TurnLostError, WorkerLoss


class LocalStore(VizierStore):
    """The study of a database that no other process takes trials from."""

    is_shared = False
    flags: list[str] = []  # The directory of the study is enough.

    def __init__(self, database: Database, name: str = 'study') -> None:
        super().__init__(database, name)
        self.worker = transitions.new_worker()

    def claim(self) -> TrialRecord | None:
        # A trial that was claimed before and has not ended comes first: its process is gone.
        with self.database.transaction():
            waiting = [each for each in self.trials() if not each.status.has_ended]
            snapshot = transitions.unended(waiting)
            for status in (Status.ACTIVE, Status.REQUESTED):
                for each in waiting:
                    if each.status is status:
                        return self.apply(
                            each.id, lambda record, now: self._claim(record, snapshot, now)
                        )
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
            with self.database.transaction():
                if suggested.id != self.max_id() + 1:
                    raise TurnLostError('trials were added in the meantime')
                return self.add_trials([suggested])[0]

        yield add

    def lose(self, id_: int, loss: WorkerLoss, max_attempts: int, step: int) -> TrialRecord:
        return self.apply(
            id_, lambda record, now: transitions.lose(record, loss, max_attempts, step, now)
        )
