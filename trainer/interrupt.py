"""Ctrl-C and SIGTERM: once to save and stop, twice to be out at once."""

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While entered, turns the first SIGINT or SIGTERM into a request.

    Example:
        >>> with Interrupt() as interrupt:
        ...     interrupt.requested()
        False
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._before: dict[int, Any] = {}

    def requested(self) -> bool:
        """Whether a signal has come."""
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended: 128 + its number."""
        return 128 + (self._signal or signal.SIGINT)

    def __enter__(self) -> 'Interrupt':
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            os._exit(self.exit_code)
        self._signal = number
        sys.stderr.write('\nSaving a checkpoint, then stopping; once more to stop at once.\n')
        sys.stderr.flush()
