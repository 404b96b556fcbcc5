"""Ctrl-C and SIGTERM: once to save and stop, twice to be out at once."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_SHOW_CURSOR = b'\x1b[?25h'
"""For terminals. A live table hides the cursor, and is not told of an exit at once."""


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
    def number(self) -> int | None:
        """The number of the signal that has come."""
        return self._signal

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended: 128 + its number."""
        return 128 + (self._signal or signal.SIGINT)

    def __enter__(self) -> 'Interrupt':
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            if os.isatty(1):
                _write(1, _SHOW_CURSOR)
            os._exit(self.exit_code)
        self._signal = number
        _write(2, b'\nSaving a checkpoint, then stopping; once more to stop at once.\n')


@contextlib.contextmanager
def exit_on_signal(message: str) -> Iterator[None]:
    """While entered, the first SIGINT or SIGTERM ends the process: 128 + its number, as shells do.

    For commands that lose nothing by that.

    Args:
        message: a line for the standard error.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        _write(2, f'\n{message}\n'.encode())
        os._exit(128 + number)

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def signal_event() -> Iterator[threading.Event]:
    """Set by the first SIGINT or SIGTERM; the second ends the process at once.

    For commands that wait. KeyboardInterrupt can be raised in a callback, where Python drops it.

    Example:
        >>> with signal_event() as ended:
        ...     ended.is_set()
        False
    """
    event = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            os._exit(128 + number)
        event.set()

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _write(descriptor: int, text: bytes) -> None:
    # Python's own files cannot be written to from here: the signal may have come while they are.
    # Whoever read the descriptor may have got the signal, too, and be gone.
    with contextlib.suppress(OSError):
        os.write(descriptor, text)
