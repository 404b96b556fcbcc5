"""A log whose number of lines callers cannot decide."""

import logging
import threading
import time

_BURST = 20.0


class BoundedLog:
    """Writes a burst of lines of each kind, and then one a second.

    Otherwise callers could fill the disk with lines that hide the important ones.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._kinds: dict[object, tuple[float, float, int]] = {}

    def write(self, kind: object, level: int, message: str, trace: Exception | None = None) -> None:
        """Writes a line, unless there were too many of its kind."""
        with self._lock:
            now = time.monotonic()
            left, last, suppressed = self._kinds.get(kind, (_BURST, now, 0))
            left = min(_BURST, left + now - last)
            if left < 1:
                self._kinds[kind] = left, now, suppressed + 1
                return
            self._kinds[kind] = left - 1, now, 0
        if suppressed:
            message = f'({suppressed} lines like this were suppressed) {message}'
        self._log.log(level, '%s', message, exc_info=trace)
