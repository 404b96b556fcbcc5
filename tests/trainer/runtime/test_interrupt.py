import itertools
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from trainer.runtime.interrupt import (
    CtrlC,
    Interrupt,
    ended_by_signal,
    kept_surroundings,
    noted_ctrl_c,
)

_TWICE = """
import os, signal
from trainer.runtime.interrupt import Interrupt
with Interrupt():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    print('still there')
"""


class Busy:
    """A file that is being written to as the signal comes."""

    def write(self, text: str) -> int:
        raise RuntimeError('reentrant call inside <_io.BufferedWriter>')


@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_with_nothing_to_save_leaves_at_once(number: int, code: int) -> None:
    program = f"""
import os
from trainer.runtime.interrupt import exit_on_signal
with exit_on_signal('Bye.'):
    os.kill(os.getpid(), {int(number)})
    print('still there')
"""
    done = subprocess.run(
        [sys.executable, '-c', program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, '', '\nBye.\n')


@pytest.mark.pax('--exit_after_ondemand_checkpoint')
@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_a_request(
    number: int,
    code: int,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, 'stderr', Busy())
    before = signal.getsignal(number)
    with Interrupt() as interrupt:
        assert not interrupt.requested()
        os.kill(os.getpid(), number)
        assert interrupt.requested()
        assert interrupt.exit_code == code
    assert signal.getsignal(number) == before
    assert 'Saving a checkpoint' in capfd.readouterr().err


def test_signals_that_a_supervisor_forwards_at_once_are_one_request() -> None:
    with Interrupt() as interrupt:
        interrupt.same_seconds = 60.0
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.exit_code == 143


def test_a_signal_is_a_request_with_a_closed_stderr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(descriptor: int, text: bytes) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(os, 'write', gone)
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested()


def test_the_second_signal_is_out_at_once_and_shows_the_cursor() -> None:
    ours, theirs = pty.openpty()
    flags = [sys.executable, '-c', _TWICE]
    done = subprocess.run(flags, stdout=theirs, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 1000)
    os.close(ours)
    assert done.returncode == 143, done.stderr
    assert shown == b'\x1b[?25h'


def test_the_second_signal_has_last_words() -> None:
    noted = "with Interrupt() as interrupt:\n    interrupt.last_words = 'Bye.'"
    program = _TWICE.replace('with Interrupt():', noted)
    done = subprocess.run(
        [sys.executable, '-c', program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (143, '') and done.stderr.endswith('\nBye.\n')


def test_the_cursor_is_not_written_to_files() -> None:
    done = subprocess.run(
        [sys.executable, '-c', _TWICE], capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (143, b'')


def test_a_signal_at_any_moment_of_a_wait_ends_it() -> None:
    """The signal comes at each line that Python runs for the wait, one after another."""
    num_lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal num_lines
        num_lines += event == 'line'
        if num_lines == at:
            sys.settrace(None)
            signal.raise_signal(signal.SIGTERM)
        return trace

    for at in itertools.count(1):
        with ended_by_signal() as ended:
            num_lines = 0
            sys.settrace(trace)
            try:
                is_set = ended.wait(0.1)
            finally:
                sys.settrace(None)
        if num_lines < at:
            break
        assert is_set, at
    assert at > 3


def test_a_wait_ends_at_a_signal_that_another_thread_received() -> None:
    def receive() -> None:
        time.sleep(0.2)  # The main thread waits by then.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    began = time.monotonic()
    with ended_by_signal() as ended:
        thread = threading.Thread(target=receive)
        thread.start()
        assert ended.wait(20)
        assert time.monotonic() - began < 10
        thread.join()


def test_a_timer_that_code_leaves_ends_with_it() -> None:
    before = signal.setitimer(signal.ITIMER_REAL, 0.0)  # A time limit of the tests.
    try:
        with kept_surroundings():
            signal.alarm(100)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


def test_a_directory_that_is_gone_is_not_restored(tmp_path: Path) -> None:
    home = Path.cwd()
    gone = tmp_path / 'gone'
    gone.mkdir()
    try:
        os.chdir(gone)
        with kept_surroundings():
            gone.rmdir()
        with kept_surroundings():
            os.chdir(tmp_path)
    finally:
        os.chdir(home)


def test_a_keyboard_interrupt_of_other_code_is_no_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), noted_ctrl_c() as is_noted:
        with pytest.raises(KeyboardInterrupt) as raised:
            raise KeyboardInterrupt
        assert not isinstance(raised.value, CtrlC) and not is_noted()
        with pytest.raises(CtrlC):
            signal.raise_signal(signal.SIGINT)
        assert is_noted()
