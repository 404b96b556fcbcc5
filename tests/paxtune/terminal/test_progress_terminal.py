"""The screen of `python -m paxtune.search`, on a real terminal."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.searches import run
from tests.servers.processes import ROOT, environment
from tests.servers.terminal import final_lines

COMMAND = [sys.executable, '-m', 'paxtune.search', '--exp=tests.factories.tunables.Rates']
SHOW_CURSOR = '\x1b[?25h'
COLORS = ('\x1b[32m', '\x1b[1;32m', '\x1b[31m')


class Terminal:
    """A command on a terminal of 80 columns.

    Attributes:
        output: what it has written so far.
    """

    def __init__(self, command: list[str], **variables: str) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0))
        env = {name: value for name, value in environment().items() if name != 'CI'}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env | {'TERM': 'xterm-256color'} | variables,
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.output, self._ours = '', ours
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 4096)
            except OSError:  # The command has closed the terminal.
                return
            with self._changed:
                self.output += data.decode(errors='replace')
                self._changed.notify_all()

    def wait_for(self, text: str) -> None:
        """Waits until the command has written a text."""
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.output, 240), self.output

    def wait(self) -> int:
        """Waits for the end of the command; returns its exit code."""
        code = self.process.wait(timeout=240)
        self._reader.join(20)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._reader.join(20)
        os.close(self._ours)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.close()


@pytest.mark.slow
@pytest.mark.sentinel
def test_a_search_with_two_workers_shows_a_screen_and_keeps_a_log(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    flags = [f'--job_log_dir={tmp_path / "study"}', '--workers=2']
    terminal = Terminal([*COMMAND, *flags], NO_COLOR='')
    terminals.append(terminal)
    terminal.wait_for('eval/log_pplx')
    assert terminal.wait() == 0, terminal.output
    assert terminal.output.rindex(SHOW_CURSOR)
    for text in ('0 of 4 trials', 'trial  step', 'learning_rate=', 'curve', 'claimed'):
        assert text in terminal.output
    assert any(each in terminal.output for each in COLORS)
    lines = final_lines(terminal.output)
    for number in range(1, 5):
        begun = f'trial {number}: completed, eval/log_pplx='
        assert len([line for line in lines if line.startswith(begun)]) == 1, lines
    summary = next(index for index, line in enumerate(lines) if line.startswith('4 of 4 trials: '))
    assert lines[summary].startswith('4 of 4 trials: 4 completed; best: trial ')
    after = '\n'.join(lines[summary:])
    assert 'The study is done' in after and 'To train it' in after
    # Nothing of the screen is left.
    assert not [line for line in lines if '──' in line or line.startswith('trial  step')]


@pytest.mark.slow
def test_control_c_pauses_the_study_and_restores_the_terminal(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    flags = [f'--job_log_dir={tmp_path / "study"}', '--set', 'train.num_train_steps=100000']
    terminal = Terminal([*COMMAND, *flags], NO_COLOR='1')
    terminals.append(terminal)
    terminal.wait_for('steps/s')
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for('Saving a checkpoint, then stopping.')
    assert terminal.wait() == 130, terminal.output
    assert terminal.output.rindex(SHOW_CURSOR) > terminal.output.index('Saving a checkpoint')
    assert not any(each in terminal.output for each in COLORS)
    words = ' '.join(' '.join(final_lines(terminal.output)).split())  # The directory is long.
    assert '0 of 4 trials: ' in words
    assert 'Paused: interrupted.' in words and 'To resume:' in words


def test_a_pipe_gets_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv('FORCE_COLOR', '1')
    run(tmp_path / 'study', 'Rates', '--num_trials=1')
    out = capsys.readouterr().out
    assert '\x1b' not in out
    lines = out.splitlines()
    assert lines[0].startswith('trial 1/1: learning_rate=')
    assert any(line.startswith('trial 1: completed; best is trial 1 with') for line in lines)
