"""Places that show a changing screen: a terminal and a notebook."""

import contextlib
import io
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from paxtune.terminal.live_screen import Size
from trainer.command import printable

_NOTEBOOK = Size(110, 40)
_OUTPUT_LINES = 8
_PRE = (
    '<pre style="line-height: 1.2; white-space: pre; overflow-x: auto; '
    'font-family: monospace">{code}</pre>'
)


class Display(Protocol):
    """A place for one screen, which each drawing replaces."""

    @property
    def size(self) -> Size:
        """The room for a screen."""

    def open(self) -> None:
        """Prepares to draw."""

    def draw(self, screen: Text) -> None:
        """Replaces the screen."""

    def say(self, text: str) -> None:
        """Shows a line that stays."""

    def close(self) -> None:
        """Prints the last lines, and undoes the changes of `open`."""


class SharedConsole(Console):
    """A console in which only one of several threads prints at a time.

    A live screen computes how far the cursor must move before it writes. Prints of two threads
    between these two moments would leave lines of the screen behind.
    """

    def __init__(self, **options: Any) -> None:
        self._turn = threading.RLock()
        super().__init__(**options)

    def __enter__(self) -> Self:
        self._turn.acquire()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._turn.release()


def standard_console() -> Console:
    """Makes a console of standard output, which is a terminal only on a real one, and not in CI."""
    is_shown = sys.stdout.isatty() and os.environ.get('CI', '') in ('', '0', 'false')
    return SharedConsole(highlight=False, force_terminal=None if is_shown else False)


def display_for(console: Console) -> 'Display | None':
    """Returns the display of a console; None where only lines can be shown."""
    if console.is_jupyter:
        return NotebookDisplay()
    return TerminalDisplay(console) if console.is_interactive else None


class TerminalDisplay:
    """A screen below the lines of a terminal.

    Lines that Python prints and logs meanwhile appear above the screen. Output of other code, to
    the file descriptors, cannot be redirected: it may disturb the screen until the next drawing.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._held = contextlib.ExitStack()
        self._live: Live | None = None

    @property
    def size(self) -> Size:
        # A line that ends at the last column moves the cursor of some terminals.
        width, height = self._console.width, self._console.height
        return Size(width, height - 1, not self._console.encoding.startswith('utf'))

    def open(self) -> None:
        stderr = sys.stderr
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            # A file that takes the messages still gets them.
            redirect_stderr=stderr.isatty(),
        )
        self._live.start()
        self._held.callback(self._stop)
        self._held.enter_context(_log_streams(stderr, sys.stderr))

    def draw(self, screen: Text) -> None:
        assert self._live is not None
        with self._console:  # Before the lock of `Live`, which a print takes second.
            self._live.update(screen, refresh=True)

    def _stop(self) -> None:
        assert self._live is not None
        with self._console:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(printable(text), markup=False)

    def close(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # A line that has no end yet.
        self._held.close()


class NotebookDisplay:
    """An output of a cell, which each drawing replaces: no line is printed."""

    size = _NOTEBOOK

    def __init__(self) -> None:
        self._handle: Any = None
        self._screen = Text()
        self._lines: deque[str] = deque(maxlen=_OUTPUT_LINES)

    def open(self) -> None:
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()
        self._handle.display(self._data(), raw=True)

    def draw(self, screen: Text) -> None:
        self._screen = screen
        self._handle.update(self._data(), raw=True)

    def say(self, text: str) -> None:
        self._lines.append(printable(text))
        if self._handle is not None:
            self._handle.update(self._data(), raw=True)

    def close(self) -> None:
        self._handle.update(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        lines = [self._screen] if self._screen else []
        text = Text('\n').join([*lines, *map(Text, self._lines)])
        return {'text/plain': text.plain, 'text/html': to_html(text)}


def to_html(text: Text) -> str:
    """Renders a styled text as HTML, escaped, without scripts and style sheets."""
    console = Console(
        file=io.StringIO(), width=_NOTEBOOK.width, record=True, force_jupyter=False,
        force_terminal=True, color_system='standard', no_color=False, highlight=False,
    )  # fmt: skip
    console.print(text, soft_wrap=True)
    return console.export_html(inline_styles=True, code_format=_PRE)


@contextlib.contextmanager
def _log_streams(before: TextIO, now: TextIO) -> Iterator[None]:
    """Lets the handlers of all loggers that write to one stream write to another."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for each in loggers for handler in getattr(each, 'handlers', [])]
    # Absl's handler keeps its stream in one of its own.
    handlers += [getattr(handler, 'python_handler', handler) for handler in handlers]
    streams = [each for each in handlers if isinstance(each, logging.StreamHandler)]
    changed = [handler for handler in dict.fromkeys(streams) if handler.stream is before]
    for handler in changed:
        handler.setStream(now)
    try:
        yield
    finally:
        for handler in changed:
            handler.setStream(before)
