"""A terminal of 80 x 24, in which commands run as a person runs them."""

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

from tests.servers.processes import environment

COLUMNS, LINES = 80, 24
CODE = re.compile(r'\x1b\[([0-9;?]*)([A-Za-z])')
PART = re.compile(rf'{CODE.pattern}|.', re.DOTALL)
_SECONDS = 280.0
# Ctrl-C in the terminal reaches its processes alone. JAX may be in this one: it must not fork.
_LOGIN = 'import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])'


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
        for part in PART.finditer(text):
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
                self.too_wide.add(self._row + 1)
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
    def words(self) -> str:
        """The text as one line, since messages are folded at words."""
        return ' '.join(self.text.split())

    @property
    def commands(self) -> list[list[str]]:
        """The words after `python` of the commands that it shows, as a person copies them."""
        lines = re.sub(r' \\\n +', ' ', self.text).splitlines()
        return [shlex.split(line)[1:] for line in lines if line.startswith('  python -m ')]

    def passed(self) -> 'Shown':
        """Itself; the command must have succeeded."""
        assert self.code == 0, f'exit {self.code}\n{self.text}'
        return self

    def refused(self) -> str:
        """The one message of a command that must end with it and exit code 2, as one line."""
        assert self.code == 2, f'exit {self.code}\n{self.text}'
        before, _, message = self.words.partition('error: ')
        assert message and 'error: ' not in before + message, self.text
        return message


def run(directory: Path, *words: str, interrupt_at: str = '') -> Shown:
    """Runs `python WORDS` in a directory, on a terminal of its own.

    Args:
        directory: the current directory.
        words: what follows `python`.
        interrupt_at: presses Ctrl-C as soon as this regular expression is in what was written.

    Raises:
        AssertionError: there is a traceback, or a line is wider than the terminal.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', LINES, COLUMNS, 0, 0))
    unset = ('COLUMNS', 'LINES', 'CI')
    env = {name: value for name, value in environment(optimizes=False).items() if name not in unset}
    process = subprocess.Popen(
        [sys.executable, '-c', _LOGIN, sys.executable, *words],
        cwd=directory,
        env=env | {'TERM': 'xterm-256color'},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    with process:
        raw = _read(ours, process, interrupt_at)
    screen = Screen()
    screen.write(raw)
    text = '\n'.join(line.rstrip() for line in screen.lines)
    assert 'Traceback' not in text, text
    assert not screen.too_wide, f'{sorted(screen.too_wide)} are too wide:\n{text}'
    return Shown(process.returncode, text, raw)


def _read(ours: int, process: subprocess.Popen[bytes], interrupt_at: str) -> str:
    """All that a process writes; it is killed where it takes too long."""
    written, deadline = b'', time.monotonic() + _SECONDS
    with open(ours, 'r+b', buffering=0) as terminal:
        while time.monotonic() < deadline:
            if interrupt_at and re.search(interrupt_at, written.decode(errors='ignore')):
                interrupt_at = ''
                terminal.write(b'\x03')
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    written += terminal.read(1 << 16)
                except OSError:  # All processes that wrote have ended.
                    return written.decode()
    process.kill()
    raise AssertionError(f'{process.args!r} takes too long:\n{written.decode()}')
