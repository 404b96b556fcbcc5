"""The line between a worker and its supervisor: the standard input of the worker, a socket.

The worker reports its end here. Its exit code alone has no meaning, since the code of a trial may
exit, too, and leave threads that keep the process alive.
"""

import contextlib
import os
import socket
import threading
from typing import Any

_LEAVE = b'leave\n'
_REPORT_BYTES = 64


class WorkerLine:
    """The line of a supervisor to one worker."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._received = b''

    @property
    def stdin(self) -> int:
        """The descriptor of the worker's standard input."""
        return self._theirs.fileno()

    def started(self, process: Any) -> None:
        """Leaves the other end to the process that has begun."""
        self._theirs.close()

    def ask_to_leave(self) -> None:
        """Asks the worker to save and end, in case that it has lost its handlers of signals."""
        with contextlib.suppress(OSError):
            self._ours.send(_LEAVE)

    def reported(self) -> int | None:
        """Returns the exit code that the worker has reported as its end; None before."""
        with contextlib.suppress(OSError):
            self._received += self._ours.recv(_REPORT_BYTES)
        first, end, _ = self._received.partition(b'\n')
        return int(first) if end else None

    def close(self) -> None:
        """Closes the line: a worker that lives ends at once."""
        self._ours.close()


class _Supervised:
    """The line of this process, a worker, to its supervisor."""

    def __init__(self) -> None:
        self.leaving = threading.Event()
        self._line: socket.socket | None = None

    def begin(self, code: int) -> None:
        """Takes the line from the standard input; the process exits with the line's end."""
        with contextlib.suppress(OSError):  # A person has started it.
            self._line = socket.socket(fileno=os.dup(0))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            threading.Thread(target=self._listen, args=[code], name='parent', daemon=True).start()

    def report(self, code: int) -> None:
        """Reports the end of this process."""
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.send(b'%d\n' % code)

    def _listen(self, code: int) -> None:
        assert self._line is not None
        while self._line.recv(len(_LEAVE)):
            self.leaving.set()
        os._exit(code)  # The supervisor has ended, in any way.


SUPERVISED = _Supervised()
"""The one line of this process, which counts nothing in another process."""


def exit_now(code: int) -> None:
    """Reports the end of this process, and exits at once."""
    SUPERVISED.report(code)
    os._exit(code)
