"""The interface of a store, which keeps the record and the trials of a study."""

import datetime
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias

from paxtune.study.record import StudyRecord, TrialRecord
from paxtune.study.transitions import Transition

AddSuggested: TypeAlias = Callable[[TrialRecord], TrialRecord]
"""Adds a suggested trial; raises `TurnLostError` where its number was taken in the meantime."""


class Journal:
    """The numbers of trials in the order of their last changes. Not thread-safe.

    Attributes:
        revision: counts the changes.
    """

    def __init__(self) -> None:
        self.revision = self._cleared = 0
        self._revisions: dict[int, int] = {}

    def note(self, number: int) -> None:
        """Notes that a trial has changed, was added or deleted."""
        self.revision += 1
        self._revisions.pop(number, None)  # It becomes the last one.
        self._revisions[number] = self.revision

    def clear(self) -> None:
        """Notes that any trial may have changed."""
        self.revision += 1
        self._cleared = self.revision
        self._revisions.clear()

    def since(self, revision: int) -> list[int] | None:
        """Returns the trials that have changed after a revision; None if any may have."""
        if revision < self._cleared:
            return None
        newest_first = reversed(self._revisions.items())
        return [
            number for number, _ in itertools.takewhile(lambda e: e[1] > revision, newest_first)
        ]


class Reading(NamedTuple):
    """The changes of a study since an earlier reading.

    Attributes:
        version: for the next reading; None where a store does not know changes.
        numbers: of all trials, in order; None if no trial was deleted.
        records: the trials that are new or have changed.
    """

    version: object
    numbers: list[int] | None
    records: list[TrialRecord]


class TrialStore(Protocol):
    """Trials that are handed out and changed one at a time, as a `TrialQueue` does.

    Attributes:
        worker: the name of this process.
        is_shared: whether a service gives the trials of the study to its workers.
    """

    worker: str

    @property
    def is_shared(self) -> bool: ...

    def is_alive(self, worker: str) -> bool:
        """Returns True unless a worker that holds a trial is known to be gone."""

    def now(self) -> datetime.datetime:
        """Returns the time, in UTC."""
        return datetime.datetime.now(datetime.UTC)

    def study(self) -> StudyRecord | None:
        """Returns the record of the study; None before it is created.

        Raises:
            UserError: another program or version wrote it, or it is damaged.
        """

    def update_study(self, change: Callable[[StudyRecord], StudyRecord]) -> StudyRecord:
        """Changes the record of the study, in one transaction; raises KeyError if it has none.

        Nothing is written where `change` raises.
        """

    def trial(self, id_: int) -> TrialRecord:
        """Returns one trial; raises KeyError without it, DamagedRecordError if damaged."""

    def max_id(self) -> int:
        """Returns the number of the newest trial; 0 where there is none."""

    def apply(self, id_: int, transition: Transition) -> TrialRecord:
        """Changes a trial in one transaction; raises KeyError if there is none.

        Nothing is written where the transition raises.

        Raises:
            LeaseLostError: another worker or another attempt owns the trial.
        """

    def claim(self, among: Collection[int]) -> TrialRecord | None:
        """Claims a trial that waits to run; None if none does.

        Args:
            among: the unended trials that the caller knows. A service knows its own better.
        """

    def turn(self) -> AbstractContextManager[AddSuggested]:
        """Waits for the turn to suggest, which this process has while inside."""


class StudyStore(TrialStore, Protocol):
    """One study: in a database of this process (`LocalStore`), or in a service (`RemoteStore`).

    Attributes:
        flags: command-line flags that name the store, beside its directory.
    """

    @property
    def flags(self) -> list[str]: ...

    def close(self) -> None:
        """Closes the connection."""

    def created(self) -> datetime.datetime:
        """Returns the time at which the study was created; raises KeyError before."""

    def create_study(self, record: StudyRecord, parameters: Iterable[Any]) -> bool:
        """Creates the study, in one transaction; returns False if another process was first."""

    def delete_study(self) -> None:
        """Deletes the study with its trials, in one transaction."""

    def ids(self) -> list[int]:
        """Returns the numbers of all trials, in order."""

    def max_id(self) -> int:
        return max(self.ids(), default=0)

    def read(self, has_ended: Callable[[int], bool], since: object = None) -> Reading:
        """Returns the trials that have changed since an earlier reading.

        Args:
            has_ended: whether the caller has read a trial that had ended: it never changes.
            since: the version of its last reading; None before the first.

        A damaged trial has its number, and no record.
        """

    def trials(self, ids: Collection[int] | None = None) -> list[TrialRecord]:
        """Returns trials by id, without damaged ones; all, or those of the given numbers."""

    def add_trials(
        self, records: Sequence[TrialRecord], after: int | None = None
    ) -> list[TrialRecord]:
        """Adds trials in one transaction.

        Args:
            after: the number of the newest trial that the caller knows.

        Raises:
            TurnLostError: another trial is the newest by now.
        """

    def delete_trial(self, id_: int) -> None:
        """Deletes a trial; raises KeyError if there is none."""
