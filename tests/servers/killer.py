"""Runs a module as `python -m` does, and kills the process at a given event.

    python -m tests.servers.killer step:5 paxtune.search --exp=…

Kinds of events, each with its number in the process:

- `step:N` before a training step; `int:N` sends SIGINT there, `ints:N` twice;
- `save:N` inside a save, with files that do not count yet (in a bucket a save counts twice);
- `saved:N` after a complete checkpoint;
- `suggestion:N` inside a suggestion, `suggested:N` before it is written;
- `moved:N` before a change of a trial (a report, an end, a note) is written;
- `copied:N` between the two writes of a change in a Vizier server;
- `eval:N` before an evaluation of an evaluation job.
"""

import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _interrupt_twice() -> None:
    _interrupt()
    _interrupt()


def _before(owner: Any, name: str, count: int, action: Callable[[], None]) -> None:
    """Has `action` done before the `count`-th call of a method."""
    original, calls = getattr(owner, name), [0]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == count:
            action()
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _saved(count: int) -> None:
    from trainer.checkpoints.checkpoint import CheckpointStore

    original, calls = CheckpointStore.save, [0]

    def save(self: Any, *args: Any) -> Any:
        path = original(self, *args)
        calls[0] += 1
        if calls[0] == count:
            self.wait()
            _die()
        return path

    setattr(CheckpointStore, 'save', save)  # noqa: B010


def arm(where: str) -> None:
    """Prepares the death of this process."""
    kind, _, number = where.partition(':')
    count = int(number)
    if kind in ('step', 'int', 'ints'):
        from trainer.loop.interrupt_policy import InterruptPolicy

        actions = {'step': _die, 'int': _interrupt, 'ints': _interrupt_twice}
        _before(InterruptPolicy, 'before_steps', count, actions[kind])
    elif kind == 'eval':
        from trainer.loop import checkpoint_jobs

        _before(checkpoint_jobs, 'evaluate', count, _die)
    elif kind == 'saved':
        _saved(count)
    elif kind == 'save':
        from orbax.checkpoint._src.path import atomicity

        for each in (atomicity.AtomicRenameTemporaryPath, atomicity.CommitFileTemporaryPath):
            _before(each, 'finalize', count, _die)
    elif kind == 'suggestion':
        from paxtune.algorithms import GPBandit, RandomSearch, RegularizedEvolution
        from tests.factories.digest_studies import Digest

        for algorithm in (GPBandit, RandomSearch, RegularizedEvolution, Digest):
            _before(algorithm, 'suggest', count, _die)
    elif kind in ('suggested', 'moved'):
        from paxtune.storage.vizier_store import VizierStore

        method = {'suggested': 'add_protos', 'moved': 'apply_to_proto'}[kind]
        _before(VizierStore, method, count, _die)
    elif kind == 'copied':
        from paxtune.service.vizier_server_store import VizierServerStore

        _before(VizierServerStore, '_copied', count, _die)
    else:
        raise ValueError(where)


if __name__ == '__main__':
    _, where, module, *flags = sys.argv
    arm(where)
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name='__main__', alter_sys=True)
