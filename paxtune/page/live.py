"""The study as it stands, for all views of the page."""

import collections
import dataclasses
import math
import threading
import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from paxtune.analysis.study_poller import StudyPoller
from paxtune.analysis.study_state import StudyState
from paxtune.service.study_location import StudyLocation, readable

MIN_SECONDS = 1.0
"""Between two reads of the study, however many browsers look at it."""

# A computation takes longer with more trials, on a machine that is busy with training.
_MAX_TIME_SHARE = 0.1
_MAX_RESULTS = 32  # Browsers can ask for any number of figures.


@dataclasses.dataclass(frozen=True)
class Computed:
    """A result that was computed of a study.

    Attributes:
        value: the result.
        token: differs between two computations.
    """

    value: Any
    token: str


class _Slot:
    """The last result of one computation."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.version, self.until = '', 0.0
        self.result: Computed | None = None


class LiveStudy:
    """A study that is read again and again; ended trials are read once.

    Attributes:
        where: the location of the study.
        location: the arguments of a command that name the study.
        study: the study, which is only read here.
    """

    def __init__(
        self,
        where: StudyLocation,
        location: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the study and reads it; raises UserError if there is none."""
        self._clock = clock
        self.where, self.location, self.study = where, [*location], where.open()
        self._poller = StudyPoller.of(self.study)
        self._lock = threading.RLock()
        self._read_at = 0.0
        self._snapshot = self._read()
        self._slots: collections.OrderedDict[Hashable, _Slot] = collections.OrderedDict()
        # When an older result that was returned may be computed again, and how often that was.
        self._due, self._renewed = math.inf, 0

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
        with self._lock:
            if self._clock() >= self._due:
                self._due, self._renewed = math.inf, self._renewed + 1
            return f'{self.snapshot().version}.{self._renewed}'

    def forget(self) -> None:
        """Makes the next snapshot a new one, after a change."""
        with self._lock:
            self._read_at = 0.0
            self._slots.clear()

    def computed(self, name: Hashable, compute: Callable[[], Any]) -> Any:
        """Returns a result computed from the study; cached until the study changes.

        A slow result may be older: computing takes at most a tenth of the time.
        """
        return self.computation(name, compute).value

    def computation(self, name: Hashable, compute: Callable[[], Any]) -> Computed:
        """Returns the result with a token, which a browser compares with the one it has."""
        with self._lock:
            version = self.snapshot().version
            slot = self._slots.setdefault(name, _Slot())
            self._slots.move_to_end(name)
            while len(self._slots) > _MAX_RESULTS:
                self._slots.popitem(last=False)
        # Others may read the study in the meantime, and compute something else.
        with slot.lock:
            if slot.result is not None:
                if slot.version == version:
                    return slot.result
                if self._clock() < slot.until:
                    with self._lock:
                        self._due = min(self._due, slot.until)
                    return slot.result
            began = self._clock()
            with readable(self.where):
                value = compute()
            took = self._clock() - began
            slot.version, slot.until = version, began + took / _MAX_TIME_SHARE
            slot.result = Computed(value, uuid.uuid4().hex)
            return slot.result

    def _read(self) -> StudyState:
        self._read_at = self._clock()
        return self._poller.poll()
