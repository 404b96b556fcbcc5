"""The study as it stands, for all views of the page."""

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from paxtune.analysis.study_poller import StudyPoller
from paxtune.analysis.study_state import StudyState
from paxtune.page.results import Computed, Results
from paxtune.service.study_location import StudyLocation, readable

MIN_SECONDS = 0.5
"""Between two reads of the study, however many browsers look at it."""


class LiveStudy:
    """A study that is read again and again; ended trials are read once.

    Attributes:
        where: the location of the study.
        location: the arguments of a command that name the study.
        study: the study, which is only read here.
        name: the name of the study for people.
    """

    def __init__(
        self,
        where: StudyLocation,
        location: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the study and reads it; raises UserError if there is none."""
        self._clock, self._results = clock, Results(clock)
        self.where, self.location, self.study = where, [*location], where.open()
        self._poller = StudyPoller.of(self.study)
        self._lock = threading.RLock()
        self._read_at = 0.0
        self._snapshot = self._read()
        home = self.study.directory
        directory = str(where) if home is None else home.name or home.absolute().name
        self.name = self._snapshot.record.name(directory)

    def close(self) -> None:
        """Closes the study."""
        self.study.close()

    def snapshot(self) -> StudyState:
        """Returns the study as it stood at most `MIN_SECONDS` ago; raises UserError."""
        with self._lock, readable(self.where):
            if self._clock() - self._read_at >= MIN_SECONDS:
                self._snapshot = self._read()
            return self._snapshot

    def version(self) -> str:
        """Returns the version for browsers, which changes when views must be redrawn.

        It changes with the snapshot, and when an outdated result may be computed again.
        """
        return f'{self.snapshot().version}.{self._results.renewals()}'

    def forget(self) -> None:
        """Makes the next snapshot a new one, after a change."""
        with self._lock:
            self._read_at = 0.0
            self._results.clear()

    def computed(self, name: Hashable, compute: Callable[[], Any]) -> Any:
        """Returns a result computed from the study; cached until the study changes.

        A slow result may be older: computing takes at most a share of the time.
        """
        return self.computation(name, compute).value

    def computation(self, name: Hashable, compute: Callable[[], Any]) -> Computed:
        """Returns the result with a token, which a browser compares with the one it has."""

        def computed() -> Any:
            with readable(self.where):
                return compute()

        return self._results.computed(name, self.snapshot().version, computed)

    def _read(self) -> StudyState:
        self._read_at = self._clock()
        return self._poller.poll()
