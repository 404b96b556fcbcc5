"""The trials of a study as they are read again and again, with a value of each that is kept."""

import bisect
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from paxtune.study.record import TrialRecord
from paxtune.study.sound_trials import SoundTrials
from paxtune.study.store import Journal, StudyStore
from paxtune.study.study_html import trials_html
from paxtune.study.trial import Trial
from trainer.runtime.garbage_collection import gc_paused

_Value = TypeVar('_Value')

_MAX_COLUMNS = 64

_number = operator.attrgetter('id')


class Trials(list[Trial]):
    """The trials of a study by id, as they stood when they were read.

    Attributes:
        unended: the trials that had not ended.
        names: short names of decisions by path.
        table: the table that keeps columns of these trials; None for a copy, which may change.
        revision: of the table.
        newest: the number of the newest trial, damaged ones included; 0 without any.
    """

    def __init__(
        self,
        trials: Iterable[Trial],
        unended: list[Trial],
        names: Mapping[str, str] = {},
        table: 'TrialTable | None' = None,
        revision: int = 0,
        newest: int = 0,
    ) -> None:
        super().__init__(trials)
        self.unended, self.names = unended, names
        self.newest = max(newest, self[-1].id if self else 0)
        self.table, self.revision = table, revision

    def copy(self) -> 'Trials':
        """Returns a copy that the caller may change."""
        return Trials(self, [*self.unended], self.names, newest=self.newest)

    def since(self, revision: int) -> list[Trial] | None:
        """Returns the trials that have changed after a revision; None if any may have."""
        return None if self.table is None else self.table.changed(self, revision)

    def _repr_html_(self) -> str:
        return trials_html(self, self.names)


def column(trials: Sequence[Trial], value_of: Callable[[Trial], _Value]) -> list[_Value]:
    """Returns a value of each trial, in their order.

    The table of `Trials` keeps the column: after a trial has changed, only its value is computed.

    Args:
        value_of: a function of the trial alone, the same object each time.
    """
    if isinstance(trials, Trials) and trials.table is not None:
        return trials.table.column(trials, value_of)
    return [*map(value_of, trials)]


class TrialTable:
    """The trials of a study. A reading costs as much as the trials that have changed since."""

    def __init__(self, names: Mapping[str, str] = {}, where: object = 'the study') -> None:
        """Makes an empty table.

        Args:
            names: short names of decisions by path.
            where: the name of the study, for lines about damaged trials.
        """
        self._names, self._sound, self._newest = names, SoundTrials(where), 0
        self._lock = threading.RLock()
        self._trials: dict[int, Trial] = {}
        self._unended: dict[int, Trial] = {}
        self._journal = Journal()
        self._version: object = None
        self._latest = Trials([], [], names, self)
        self._columns: dict[Callable[[Trial], Any], tuple[int, list[Any]]] = {}

    def ended(self, number: int) -> Trial | None:
        """Returns a trial that has ended, and so never changes; None for any other."""
        known = self._trials.get(number)
        return known if known is not None and known.is_terminal else None

    def read(self, store: StudyStore, trial_of: Callable[[TrialRecord], Trial]) -> Trials:
        """Reads a store. Until a trial changes, this is the same list, which no caller changes.

        Args:
            trial_of: raises DamagedRecordError for a trial that is left out.
        """
        with self._lock:
            with gc_paused():
                reading = store.read(self._has_ended, self._version)
                stored = ((record.id, record) for record in reading.records)
                for trial in self._sound.read(stored, trial_of):
                    self.put(trial)
            if reading.numbers is not None:
                for number in self._trials.keys() - set(reading.numbers):
                    self.forget(number)
            numbers = [self._newest, *(record.id for record in reading.records)]
            self._newest = max(numbers if reading.numbers is None else reading.numbers, default=0)
            self._version = reading.version
            trials = self.trials()
            trials.newest = max(self._newest, trials[-1].id if trials else 0)
            return trials

    def _has_ended(self, number: int) -> bool:
        return self.ended(number) is not None

    def trials(self) -> Trials:
        """Returns all trials as they stand in the table."""
        with self._lock:
            before, revision = self._latest, self._journal.revision
            if before.revision == revision:
                return before
            changed = self._journal.since(before.revision)
            # A copy of a list takes a third of the time that one of a dict takes.
            trials = [*before] if changed is not None else [*self._trials.values()]
            for number in sorted(changed or ()):
                place = bisect.bisect_left(trials, number, key=_number)
                trials[place : place + 1] = [self._trials[number]]
            self._latest = Trials(trials, [*self._unended.values()], self._names, self, revision)
            return self._latest

    def put(self, trial: Trial) -> None:
        """Adds a trial, or replaces it."""
        with self._lock:
            is_new = trial.id not in self._trials
            is_late = is_new and trial.id < next(reversed(self._trials), 0)
            self._trials[trial.id] = trial
            if trial.is_terminal:
                self._unended.pop(trial.id, None)
            else:
                self._unended[trial.id] = trial
            self._journal.note(trial.id)
            if is_late:
                self._trials = dict(sorted(self._trials.items()))
                self._unended = dict(sorted(self._unended.items()))
                self._journal.clear()

    def forget(self, number: int) -> None:
        """Removes a trial that the store does not have any more."""
        with self._lock:
            self._unended.pop(number, None)
            if self._trials.pop(number, None) is not None:
                self._journal.clear()

    def changed(self, trials: Trials, revision: int) -> list[Trial] | None:
        """See `Trials.since`."""
        with self._lock:
            numbers = self._journal.since(revision) if revision else None
        return None if numbers is None else [trials[each] for each in _places(trials, numbers)]

    def column(self, trials: Trials, value_of: Callable[[Trial], _Value]) -> list[_Value]:
        """See `column`."""
        with self._lock:
            revision, values = self._columns.pop(value_of, (0, []))
            changed = self._journal.since(min(revision, trials.revision)) if revision else None
            if changed is None:
                values = [*map(value_of, trials)]
            else:
                values = values[: len(trials)]
                for place in _places(trials, changed):
                    values[place : place + 1] = [value_of(trials[place])]
            self._columns[value_of] = (trials.revision, values)  # It becomes the last one.
            if len(self._columns) > _MAX_COLUMNS:
                del self._columns[next(iter(self._columns))]
            return values.copy()


def _places(trials: Trials, numbers: Iterable[int]) -> list[int]:
    found = sorted(bisect.bisect_left(trials, number, key=_number) for number in numbers)
    return [place for place in found if place < len(trials)]  # An older list lacks the newest.
