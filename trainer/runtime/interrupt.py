"""Ctrl-C and SIGTERM: the first saves and stops, the second exits at once."""

import contextlib
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType

_SHOW_CURSOR = b'\x1b[?25h'
"""For terminals: a live table hides the cursor, and cannot restore it at an immediate exit."""

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
"""Signals whose handlers code of users replaces, as for time limits of its own."""


class Interrupt:
    """Context manager that turns the first SIGINT or SIGTERM into a request.

    Attributes:
        number: number of the received signal; None before it.
        same_seconds: seconds within which further signals are the same request.
        MESSAGE: the text for people at the first signal.
        is_displayed: a live display shows the message, and would overwrite a line of its own.
        last_words: the text for people at the second signal, such as how to resume.

    Example:
        >>> with Interrupt() as interrupt:
        ...     interrupt.requested()
        False
    """

    MESSAGE = 'Saving a checkpoint, then stopping. Repeat the signal to stop at once.'

    def __init__(self, exit: Callable[[int], object] = os._exit) -> None:
        """Makes the manager; `exit` ends the process at the second signal, with an exit code."""
        self._exit = exit
        self.number: int | None = None
        self.is_displayed = False
        self.last_words = ''
        self.same_seconds = self._received = 0.0
        self._held = contextlib.ExitStack()

    def requested(self) -> bool:
        """True after a signal."""
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """Exit code that shells expect after a signal: 128 + its number."""
        return 128 + (self.number or signal.SIGINT)

    def __enter__(self) -> 'Interrupt':
        self._held.enter_context(_handled_by(self._handle))
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is not None and now - self._received < self.same_seconds:
            return
        if self.number is not None:
            if os.isatty(1):
                _write(1, _SHOW_CURSOR)
            if self.last_words:
                _write(2, f'\n{self.last_words}\n'.encode())
            self._exit(self.exit_code)
        self.number, self._received = number, now
        if not self.is_displayed:
            _write(2, f'\n{self.MESSAGE}\n'.encode())


class CtrlC(KeyboardInterrupt):
    """A Ctrl-C of the user. Another KeyboardInterrupt is an end of the code that raises it."""


@contextlib.contextmanager
def noted_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Raises each KeyboardInterrupt of a signal as `CtrlC` inside, and as itself at the end.

    Code that drops the exception is interrupted at the end.

    Yields:
        A function that returns True after a Ctrl-C.
    """
    noted: list[CtrlC] = []

    def note() -> None:
        noted.append(CtrlC())
        raise noted[-1] from None

    try:
        with _at_ctrl_c(note):
            yield lambda: bool(noted)
    except CtrlC:
        raise KeyboardInterrupt from None
    if noted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def answered_ctrl_c(*answers: str) -> Iterator[Callable[[], int]]:
    """Writes an answer to standard error at each Ctrl-C that raises KeyboardInterrupt.

    Args:
        *answers: to the first, the second, and so on; nothing is written for an empty one.

    Yields:
        A function that returns the number of them.
    """
    count = 0

    def answer() -> None:
        nonlocal count
        if text := ''.join(answers[count : count + 1]):
            _write(2, f'\n{text}\n'.encode())
        count += 1

    with _at_ctrl_c(answer):
        yield lambda: count


@contextlib.contextmanager
def _at_ctrl_c(act: Callable[[], None]) -> Iterator[None]:
    """Acts at each SIGINT whose handler raises KeyboardInterrupt. Threads get no signals."""
    earlier = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(earlier):
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            earlier(number, frame)
        except KeyboardInterrupt:
            act()
            raise

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)


@contextlib.contextmanager
def kept_surroundings() -> Iterator[None]:
    """Restores the current directory, the handlers of signals and a timer at the end.

    Code inside may change them for all that follows it. In other threads nothing is restored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Other threads may be in the directory.
        return
    try:
        directory = os.getcwd()
    except OSError:  # It was deleted.
        directory = ''
    before = {each: signal.getsignal(each) for each in _HANDLED}
    timer = signal.getitimer(signal.ITIMER_REAL)
    try:
        yield
    finally:
        if timer == (0.0, 0.0):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        with contextlib.suppress(OSError):
            os.chdir(directory)


@contextlib.contextmanager
def exit_on_signal(message: str) -> Iterator[None]:
    """Context manager that prints a line and exits at the first SIGINT or SIGTERM.

    The exit code is 128 + its number, as in shells. For commands that lose no work at an exit.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        _write(2, f'\n{message}\n'.encode())
        os._exit(128 + number)

    with _handled_by(handle):
        yield


class InterruptRequested(BaseException):
    """Ends a computation of which nothing is kept. No `except Exception` catches it."""


_asked: ContextVar[Callable[[], bool]] = ContextVar('asked', default=lambda: False)


@contextlib.contextmanager
def asking(is_requested: Callable[[], bool]) -> Iterator[None]:
    """Context manager in which `check` asks a function.

    Example:
        >>> with asking(lambda: True):
        ...     check()
        Traceback (most recent call last):
        ...
        trainer.runtime.interrupt.InterruptRequested
    """
    token = _asked.set(is_requested)
    try:
        yield
    finally:
        _asked.reset(token)


def check() -> None:
    """Raises InterruptRequested if an interrupt was requested from this thread's computation."""
    if _asked.get()():
        raise InterruptRequested


_TURN_SECONDS = 0.2


class SignalEvent:
    """Event that a handler of signals can set while the same thread waits for it.

    `threading.Event` takes a lock for that, so a signal at the wrong moment would block for ever.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._woken = queue.SimpleQueue[None]()

    def set(self) -> None:
        """Sets it."""
        self._is_set = True
        self._woken.put(None)

    def is_set(self) -> bool:
        """True once it is set."""
        return self._is_set

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is set, or for some seconds; returns True if it is set.

        A signal that another thread received, or that came just before the wait, does not end the
        wait: Python runs its handler between two turns.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        while not self._is_set and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._woken.get(timeout=min(left, _TURN_SECONDS))
        return self._is_set


@contextlib.contextmanager
def ended_by_signal() -> Iterator[SignalEvent]:
    """Event that the first SIGINT or SIGTERM sets; the second exits the process at once.

    For commands that wait. Python drops a KeyboardInterrupt that is raised in a callback.

    Example:
        >>> with ended_by_signal() as ended:
        ...     ended.is_set()
        False
    """
    event = SignalEvent()

    def handle(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            os._exit(128 + number)
        event.set()

    with _handled_by(handle):
        yield event


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {each: signal.signal(each, handler) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _write(descriptor: int, text: bytes) -> None:
    # A signal may interrupt a write to one of Python's files, so this bypasses them. The reader of
    # the descriptor may have exited at the same signal.
    with contextlib.suppress(OSError):
        os.write(descriptor, text)
