"""Sees whether a parser runs what it reads: code, imports, processes, files that are written.

Python reports all that to an audit hook. A hook cannot be removed, so there is one, which is
inactive unless `harmless` is on.
"""

import contextlib
import gc
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import hypothesis
import pyglove as pg
from hypothesis import strategies as st

from tests.properties import examples
from trainer.symbolic.errors import UserError

SECONDS = 5.0
"""Seconds of processor time for an example."""

_MEGABYTES = 256  # Memory of an example.
MAX_LINES, MAX_CHARACTERS = 30, 5000
"""Limits of a message."""


_FORBIDDEN = re.compile(
    r'exec|import|marshal\.loads|pickle\.find_class|code\.__new__|function\.__new__'
    r'|(os\.(system|exec|posix_spawn|spawn|fork|forkpty|startfile|remove|rename|link|symlink|mkdir'
    r'|rmdir|truncate|utime|chmod|chown|putenv|unsetenv|kill|killpg))|subprocess\.Popen|pty\.spawn'
    r'|shutil\..*|ctypes\..*|socket\..*|urllib\.Request|_thread\.start_new_thread|signal\..*'
    r'|sys\.(settrace|setprofile|addaudithook)|builtins\.(input|breakpoint)|webbrowser.*'
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC

_seen: list[str] = []
_watched_thread: int | None = None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _watched_thread != threading.get_ident():
        return
    if _FORBIDDEN.fullmatch(event) or (
        event == 'open' and isinstance(args[2], int) and args[2] & _WRITES
    ):
        _seen.append(f'{event} {args!r:.200}')
    elif event == 'compile' and args[1] != '<unknown>':
        # `ast.parse` calls it '<unknown>'; what comes out of it can only run through 'exec'.
        _seen.append(f'{event} {args!r:.200}')


sys.addaudithook(_hook)


class TooSlow(BaseException):
    """An example takes too long. No parser catches it."""


# --- What must not be touched ---


def trap(*unused: Any, **unused_named: Any) -> Any:
    """A function whose name is in what is read."""
    _seen.append('the trap was called')


class Trap(pg.Object):
    """A symbolic class that is no component: nothing that is read may make one."""

    anything: Any = None

    def _on_bound(self) -> None:
        super()._on_bound()
        _seen.append('a Trap was made')


@pg.functor([])
def trap_functor() -> int:
    """A symbolic function."""
    _seen.append('the symbolic trap was called')
    return 1


# --- Watching ---


@contextlib.contextmanager
def harmless(seconds: float = SECONDS) -> Iterator[None]:
    """Inside, nothing runs that was read, and nothing takes for ever or all memory.

    Args:
        seconds: of processor time.

    Raises:
        AssertionError: something did.
        TooSlow: it took too long, and was cut short.
    """
    global _watched_thread
    _seen.clear()
    modules, peak, began = set(sys.modules), _peak_megabytes(), time.thread_time()
    before = signal.signal(signal.SIGVTALRM, _too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    _watched_thread = threading.get_ident()
    try:
        yield
    finally:
        _watched_thread = None
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert not _seen, f'it ran: {_seen}'
    assert set(sys.modules) <= modules, f'it imported: {set(sys.modules) - modules}'
    assert time.thread_time() - began < seconds
    assert _peak_megabytes() - peak < _MEGABYTES


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def _peak_megabytes() -> float:
    with open('/proc/self/status') as status:
        for line in status:
            if line.startswith('VmHWM:'):
                return int(line.split()[1]) / 1024
    return 0.0


def forget_peak() -> None:
    """Lets memory count from now on, whatever this process held before."""
    with open('/proc/self/clear_refs', 'w') as file:
        file.write('5')


def refused_or_taken(read: Callable[[], Any], *others: type[Exception]) -> Any:
    """Parses an input; returns None where the parser refuses it as it should.

    Args:
        read: reads the input.
        others: what it may raise besides UserError.

    Raises:
        AssertionError: it ran something, or its message is empty or too long for people.
    """
    refusals: tuple[type[Exception], ...] = (UserError, *others)
    with harmless():
        try:
            return read()
        except refusals as error:
            refusal = error
    message = str(refusal)
    assert message.strip(), f'an empty {type(refusal).__name__}'
    assert len(message) <= MAX_CHARACTERS, f'{len(message)} characters: {message[:300]}'
    assert message.count('\n') < MAX_LINES, message
    return None


def for_all(count: int, check: Callable[..., None], *inputs: st.SearchStrategy[Any]) -> None:
    """Checks a property for the same inputs each time: a quarter of `count` in the fast suite."""
    forget_peak()
    gc.collect()  # Objects of earlier tests clean up behind themselves, but not inside of a check.
    examples(count)(hypothesis.given(*inputs)(check))()
