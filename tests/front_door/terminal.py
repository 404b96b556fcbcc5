"""A terminal of 80 x 24, in which commands run as a person runs them."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

from tests.processes import environment

COLUMNS, LINES = 80, 24
_PART = re.compile(r'\x1b\[([0-9;?]*)([A-Za-z])|.', re.DOTALL)
_SECONDS = 300.0


class Screen:
    """The lines of a terminal, those that have scrolled away too.

    Attributes:
        lines: the text of each.
        too_wide: numbers of the lines that the terminal had to fold.
    """

    def __init__(self) -> None:
        self.lines = ['']
        self.too_wide: set[int] = set()
        self._row = self._column = 0

    def write(self, text: str) -> None:
        """Shows output; knows the control codes of rich's live displays."""
        for part in _PART.finditer(text):
            count, code = part[1], part[2]
            if code is None:
                self._show(part[0])
            elif code == 'A':
                self._row = max(self._row - int(count or 1), len(self.lines) - LINES, 0)
            elif code == 'K':
                self.lines[self._row] = ''
            else:
                assert code in 'mhl', f'unknown code {part[0]!r}'

    def _show(self, character: str) -> None:
        if character == '\r':
            self._column = 0
        elif character == '\n':
            self._next_line()
        elif character >= ' ':
            if self._column == COLUMNS:
                self.too_wide.add(self._row)
                self._next_line()
                self._column = 0
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
            self._column += 1

    def _next_line(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append('')


class Shown(NamedTuple):
    """The screen after a command.

    Attributes:
        code: its exit code.
        text: the lines on the screen, without blanks at their ends.
        raw: all that it wrote, with control codes.
    """

    code: int
    text: str
    raw: str

    @property
    def unwrapped(self) -> str:
        """The text as one line, since messages are folded at words."""
        return ' '.join(self.text.split())

    def passed(self) -> str:
        """The text of a command that must have succeeded."""
        assert self.code == 0, f'exit {self.code}\n{self.text}'
        return self.text

    def refused(self) -> str:
        """The message, as one line, of a command that must end with it and exit code 2."""
        assert self.code == 2, f'exit {self.code}\n{self.text}'
        assert self.text.count('error: ') == 1, self.text
        return self.unwrapped.partition('error: ')[2]


def run(directory: Path, *words: str, interrupt_at: str = '') -> Shown:
    """Runs `python WORDS` in a directory, on a terminal of its own.

    Args:
        directory: the current directory.
        words: what follows `python`.
        interrupt_at: presses Ctrl-C as soon as this text, a regular expression, is written.

    Raises:
        AssertionError: there is a traceback, or a line is wider than the terminal.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', LINES, COLUMNS, 0, 0))
    env = environment() | {'TERM': 'xterm-256color'}
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=directory,
        env={name: value for name, value in env.items() if name not in ('COLUMNS', 'LINES', 'CI')},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        raw = _read(ours, process, interrupt_at)
        code = process.wait()
    screen = Screen()
    screen.write(raw)
    text = '\n'.join(line.rstrip() for line in screen.lines)
    assert 'Traceback' not in text, text
    assert not screen.too_wide, [screen.lines[row] for row in sorted(screen.too_wide)] + [text]
    return Shown(code, text, raw)


def _read(ours: int, process: subprocess.Popen[bytes], interrupt_at: str) -> str:
    written, deadline = b'', time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        if interrupt_at and re.search(interrupt_at, written.decode(errors='ignore')):
            interrupt_at = ''
            os.killpg(process.pid, signal.SIGINT)  # As the terminal does at Ctrl-C.
        if select.select([ours], [], [], 0.2)[0]:
            try:
                got = os.read(ours, 1 << 16)
            except OSError:  # Linux's end of file of a terminal.
                break
            written += got
    else:
        process.kill()
    os.close(ours)
    return written.decode()
