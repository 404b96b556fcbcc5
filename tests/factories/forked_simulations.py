"""A process that forks others, which run `paxtune.simulate` and are killed: they start at once.

It reads a line of JSON for each, `{"argv": […], "kill": …, "log": …}`, and answers with its exit
code, negative for a signal. How it is killed, always by SIGKILL:

    null                      not at all
    "event:N"                 before or after its N-th write: a commit, or a change of a directory
    "pause:N+K"               K such events after the N-th pause; likewise `promote`, `fork`, `end`
                              (of a paused trial), `branch` (a checkpoint is brought over)
    "after:SECONDS"           so long after its first event, from outside
"""

import functools
import importlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy

from paxtune.running import trial_spec
from paxtune.study import transitions, trial_queue
from trainer.command import module_of

for each in (
    'paxtune.api',
    'paxtune.simulate.replay_workload',
    'paxtune.storage.open_study',
):
    importlib.import_module(each)  # All that takes long to import.
_SIMULATE = module_of('paxtune.simulate')


class _Death:
    """Counts the events of this process, and ends it at one of them."""

    def __init__(self, kill: str | None, first: int) -> None:
        self._first: int | None = first
        self._left: int | None = None
        kind, _, rest = (kill or 'none:').partition(':')
        self._moment, self._moments, self._more = kind, 0, 0
        if kind == 'event':
            self._left = int(rest)
        elif kind not in ('none', 'after'):
            number, _, more = rest.partition('+')
            self._moments, self._more = int(number), int(more)

    def event(self) -> None:
        if self._first is not None:
            os.write(self._first, b'.')
            self._first = None
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def moment(self, kind: str) -> None:
        if kind == self._moment:
            self._moments -= 1
            if self._moments == 0:
                self._left = self._more + 1

    def around(self, owner: Any, name: str, tell: Callable[[], None]) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            tell()
            found = original(*args, **kwargs)
            if tell == self.event:
                tell()
            return found

        setattr(owner, name, wrapped)

    def watch(self) -> None:
        self.around(sqlalchemy.engine.Connection, 'commit', self.event)
        for name in ('link', 'mkdir', 'rename', 'replace', 'rmdir', 'unlink'):
            self.around(os, name, self.event)
        for kind, owner, name in (
            ('pause', transitions, 'pause'),
            ('promote', transitions, 'promote'),
            ('fork', trial_queue.TrialQueue, '_promote_or_fork'),
            ('end', trial_queue.TrialQueue, '_end'),
            ('branch', trial_spec, 'fork_checkpoint'),
        ):
            self.around(owner, name, functools.partial(self.moment, kind))


def _run(argv: list[str], kill: str | None, log: str, first: int) -> None:
    """Runs a child process; it never returns."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    code = 1
    try:
        _Death(kill, first).watch()
        code = _SIMULATE.main(argv)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(code)


def _ended(pid: int, kill: str | None, first: int) -> int:
    """Waits for a child, and kills it where it is to be killed from outside."""
    if kill is not None and kill.startswith('after:'):
        select.select([first], [], [])  # It has begun, or has ended.
        end = time.monotonic() + float(kill.removeprefix('after:'))
        while time.monotonic() < end:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)  # An ended one is still a zombie: only `waitpid` reaps it.
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        theirs, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(theirs)
            _run(job['argv'], job['kill'], job['log'], ours)
        os.close(ours)
        code = _ended(pid, job['kill'], theirs)
        os.close(theirs)
        print(code, flush=True)


if __name__ == '__main__':
    main()
