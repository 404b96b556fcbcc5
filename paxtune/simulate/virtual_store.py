"""The trials of a simulated study: in memory, on a virtual clock."""

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterator

from paxtune.storage.claims import next_claim
from paxtune.study.record import StudyRecord, TrialRecord
from paxtune.study.store import AddSuggested
from paxtune.study.transitions import Transition, applied
from paxtune.study.trial import Trial, TrialContext
from paxtune.study.trial_table import Trials, TrialTable

_START = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


class VirtualStore:
    """Keeps the trials of a simulated study: methods of `paxtune.study.store.TrialStore`.

    Attributes:
        seconds: the time on the virtual clock.
        trials: the trials by number, as they stand now.
    """

    worker, is_shared = 'simulated', False

    def __init__(
        self, context: TrialContext, prepare: Callable[[TrialRecord], TrialRecord]
    ) -> None:
        """Begins without trials; `prepare` changes each trial that is added."""
        self.seconds = 0.0
        self.trials: dict[int, Trial] = {}
        self._context, self._prepare = context, prepare
        self._study = StudyRecord(value='', search='', spec='', data={})
        self._table = TrialTable()

    def read(self) -> Trials:
        """Returns all trials: the same list until one of them changes."""
        return self._table.trials()

    def is_alive(self, worker: str) -> bool:
        return bool(worker)

    def now(self) -> datetime.datetime:
        return _START + datetime.timedelta(seconds=self.seconds)

    def study(self) -> StudyRecord:
        return self._study

    def update_study(self, change: Callable[[StudyRecord], StudyRecord]) -> StudyRecord:
        self._study = change(self._study)
        return self._study

    def trial(self, id_: int) -> TrialRecord:
        return self.trials[id_].record

    def max_id(self) -> int:
        return len(self.trials)

    def apply(self, id_: int, transition: Transition) -> TrialRecord:
        return self._keep(applied(transition, self.trials[id_].record, self.now()))

    def claim(self, among: Collection[int]) -> TrialRecord | None:
        records = [trial.record for trial in self.read().unended]
        found = next_claim(records, self.worker, self.is_alive)
        return None if found is None else self.apply(*found)

    @contextlib.contextmanager
    def turn(self) -> Iterator[AddSuggested]:
        yield lambda added: self._keep(
            self._prepare(dataclasses.replace(added, created=self.now()))
        )

    def _keep(self, record: TrialRecord) -> TrialRecord:
        self.trials[record.id] = Trial(record, self._context)
        self._table.put(self.trials[record.id])
        return record
