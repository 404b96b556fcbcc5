"""The suggest lock: one worker at a time suggests the next trial of a study."""

import threading
import uuid
from collections.abc import Callable

from paxtune.service.leases import process_of

_SECONDS = 120.0
_PATIENCE_SECONDS = 0.2


class SuggestLock:
    """A lock that a token, its worker or a timeout releases.

    A few calls wait for it, so that workers need not poll the service.
    """

    def __init__(
        self, lock: threading.RLock, clock: Callable[[], float], max_waiting: int = 8
    ) -> None:
        """Makes a free lock. All callers hold `lock`; a few wait, in threads of the server."""
        self._clock, self._max_waiting = clock, max_waiting
        self._freed, self._num_waiting = threading.Condition(lock), 0
        self._token, self._worker, self._expires = '', '', 0.0

    def acquire(self, worker: str) -> str:
        """Returns a token; '' while another worker has the lock."""

        def is_free() -> bool:
            return self._worker in ('', worker) or self._clock() >= self._expires

        if not is_free() and self._num_waiting < self._max_waiting:
            self._num_waiting += 1
            self._freed.wait_for(is_free, _PATIENCE_SECONDS)
            self._num_waiting -= 1
        if not is_free():
            return ''
        self._token, self._worker = uuid.uuid4().hex, worker
        self._expires = self._clock() + _SECONDS
        return self._token

    def is_valid(self, token: str) -> bool:
        """Returns True if a token still has the lock."""
        return token == self._token and self._clock() <= self._expires

    def release(self, token: str) -> None:
        """Releases the lock, if the token has it."""
        if token == self._token:
            self._release()

    def release_process(self, worker: str) -> None:
        """Releases the lock, if the worker or one of its lanes has it."""
        if worker in (self._worker, process_of(self._worker)):
            self._release()

    def _release(self) -> None:
        self._token = self._worker = ''
        self._freed.notify()
