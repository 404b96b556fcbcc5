"""Results that are computed from a source which changes, each for all browsers."""

import collections
import dataclasses
import math
import threading
import time
import uuid
from collections.abc import Callable, Hashable
from typing import Any, Protocol

# A computation takes longer with more trials, on a machine that is busy with training.
_MAX_TIME_SHARE = 0.1
_MAX_RESULTS = 32  # Browsers can ask for any number of figures.


@dataclasses.dataclass(frozen=True)
class Computed:
    """A result.

    Attributes:
        value: the result.
        token: differs between two computations.
    """

    value: Any
    token: str


class Source(Protocol):
    """A study, or several, of which results are computed."""

    def computation(self, name: Hashable, compute: Callable[[], Any]) -> Computed:
        """Returns a result with its token; raises UserError."""


class _Slot:
    """The last result of one computation."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.version, self.until = '', 0.0
        self.result: Computed | None = None


class Results:
    """Keeps results until their source changes; computing takes at most a share of the time.

    The first computation of a result does not count: it imports code.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, most: int = _MAX_RESULTS
    ) -> None:
        """Keeps at most this number of results."""
        self._most = most
        self._clock, self._lock = clock, threading.Lock()
        self._slots: collections.OrderedDict[Hashable, _Slot] = collections.OrderedDict()
        # When an older result that was returned may be computed again, and how often that was.
        self._due, self._renewed = math.inf, 0

    def renewals(self) -> int:
        """Returns a number that grows when an outdated result may be computed again."""
        with self._lock:
            if self._clock() >= self._due:
                self._due, self._renewed = math.inf, self._renewed + 1
            return self._renewed

    def clear(self) -> None:
        """Forgets all results."""
        with self._lock:
            self._slots.clear()

    def computed(self, name: Hashable, version: str, compute: Callable[[], Any]) -> Computed:
        """Returns a result; a slow one may be of an older version.

        Args:
            name: of the result.
            version: of the source.
            compute: makes the result. Others may be computed in the meantime.
        """
        with self._lock:
            slot = self._slots.setdefault(name, _Slot())
            self._slots.move_to_end(name)
            while len(self._slots) > self._most:
                self._slots.popitem(last=False)
        with slot.lock:
            if slot.result is not None:
                if slot.version == version:
                    return slot.result
                if self._clock() < slot.until:
                    with self._lock:
                        self._due = min(self._due, slot.until)
                    return slot.result
            is_first, began = slot.result is None, self._clock()
            value = compute()
            took = 0.0 if is_first else self._clock() - began
            slot.version, slot.until = version, began + took / _MAX_TIME_SHARE
            slot.result = Computed(value, uuid.uuid4().hex)
            return slot.result
