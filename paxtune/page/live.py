"""The study as it stands, for all views of the page."""

import contextlib
import dataclasses
import hashlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from paxtune.service.schema import RequestRejectedError
from paxtune.service.study_location import StudyLocation
from paxtune.storage.database import DatabaseUnavailableError
from paxtune.storage.study_file import unreadable
from paxtune.storage.vizier_store import BROKEN
from paxtune.study.record import StudyRecord
from paxtune.study.study_view import Trials
from paxtune.study.transitions import DetachedError

LEAST_SECONDS = 1.0
"""Between two reads of the study, however many browsers look at it."""

# A computation takes longer with more trials, on a machine that is busy with training.
_MOST_OF_THE_TIME = 0.1


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The study at one moment.

    Attributes:
        version: differs where anything differs that the page shows.
    """

    trials: Trials
    record: StudyRecord
    version: str


class LiveStudy:
    """A study that is read again and again; ended trials are read once.

    Attributes:
        where: the location of the study.
        study: the study, which is only read here.
    """

    def __init__(self, where: StudyLocation) -> None:
        """Opens the study and reads it; raises UserError if there is none."""
        self.where, self.study = where, where.open()
        self._lock = threading.RLock()
        self._read_at = 0.0
        self._snapshot = self._read()
        self._computed: dict[Hashable, tuple[str, float, Any]] = {}

    def close(self) -> None:
        """Closes the study."""
        self.study.close()

    def snapshot(self) -> Snapshot:
        """Returns the study as it stood at most `LEAST_SECONDS` ago; raises UserError."""
        with self._lock, readable(self.where):
            if time.monotonic() - self._read_at >= LEAST_SECONDS:
                self._snapshot = self._read()
            return self._snapshot

    def forget(self) -> None:
        """Makes the next snapshot a new one, after a change."""
        with self._lock:
            self._read_at = 0.0
            self._computed.clear()

    def computed(self, name: Hashable, compute: Callable[[], Any]) -> Any:
        """Returns what is computed of the study, again only where the study differs.

        What takes long may be older: computing takes at most a tenth of the time.
        """
        with self._lock:
            version = self.snapshot().version
            if name in self._computed:
                known, until, value = self._computed[name]
                if known == version or time.monotonic() < until:
                    return value
            began = time.monotonic()
            value = compute()
            took = time.monotonic() - began
            self._computed[name] = version, began + took / _MOST_OF_THE_TIME, value
            return value

    def _read(self) -> Snapshot:
        trials, record = self.study.trials, self.study.record
        self._read_at = time.monotonic()
        state = [
            (each.id, str(each.status), each.record.holder, each.attempt, len(each.measurements))
            for each in trials.unended
        ]
        requests = record.stop_requests, record.pause_requested, sorted(record.notes.items())
        content = repr((len(trials), sum(each.id for each in trials), state, requests))
        return Snapshot(trials, record, hashlib.sha256(content.encode()).hexdigest())


@contextlib.contextmanager
def readable(where: StudyLocation) -> Iterator[None]:
    """Raises UserError for errors of the store."""
    try:
        yield
    except (DatabaseUnavailableError, DetachedError, RequestRejectedError, *BROKEN) as error:
        raise unreadable(where, None, error) from error
