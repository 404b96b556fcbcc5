"""Barriers of the processes in a save that runs beside the training steps.

Orbax synchronizes the processes several times in a save. A process whose write failed does not
reach the next barrier, where the others would wait for twenty minutes. The barriers are therefore
numbered. If processes reach different barriers under one number, the save has failed in all.
"""

import itertools
import json
import sys
from typing import Any

import orbax.checkpoint.experimental.v1 as ocp

from trainer.runtime import processes

_made = itertools.count()  # All processes make their checkpointers in the same order.


def context() -> ocp.Context | None:
    """The Orbax context of a checkpointer with several processes; None with one process."""
    if processes.count() == 1:
        return None
    made = ocp.Context()
    # Its public fields have no place for a barrier. Without it failures show, but late.
    made._async_options = _Options(_Barriers(next(_made)))
    return made


class _Options(ocp.options.AsyncOptions):
    """Options of Orbax v1, with an option of v0 that they lack."""

    def __init__(self, barriers: '_Barriers') -> None:
        super().__init__()
        self.barriers = barriers

    def v0(self) -> Any:
        options = super().v0()
        options.barrier_sync_fn = self.barriers
        return options


class _Barriers:
    """Successive barriers in the saves of one checkpointer."""

    def __init__(self, number: int) -> None:
        self._number, self._count = number, 0
        self._failure: str | None = None

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        """Waits until all processes are here; fails if one is at another barrier, or was."""
        if self._failure is None:
            self._count += 1
            name = f'paxtune/saves/{self._number}/{self._count}'
            # Orbax also comes here from a `finally` clause, after a failure.
            failed = sys.exception()
            message = json.dumps(
                [key, None if failed is None else f'{type(failed).__name__}: {failed}']
            )
            received = [json.loads(each) for each in processes.barrier(name, message, timeout_ms)]
            if received != [[key, None]]:
                reasons = ' and '.join(sorted({reason for _, reason in received if reason}))
                self._failure = f'the save failed in a process: {reasons or "in another process"}'
        if self._failure is not None:
            raise RuntimeError(self._failure)
