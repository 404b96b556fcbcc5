"""Where processes wait for each other while a checkpoint is written beside the steps.

Orbax has them meet several times in a save. One whose write failed does not come to the next
meeting, and the others would wait there for twenty minutes. So the meetings are counted: the n-th
one has to be the same in all processes, and if it is not, the save has failed in all.
"""

import itertools
import json
import sys
from typing import Any

import orbax.checkpoint.experimental.v1 as ocp

from trainer.runtime import processes

_made = itertools.count()


def context() -> ocp.Context | None:
    """What a checkpointer of several processes is made with; None with one process."""
    if processes.count() == 1:
        return None
    made = ocp.Context()
    # Its public fields have no place for a barrier. Without it failures show, but late.
    made._async_options = _Options(_Meetings(next(_made)))
    return made


class _Options(ocp.options.AsyncOptions):
    """Orbax's options, with what they leave out of those that they stand for."""

    def __init__(self, meetings: '_Meetings') -> None:
        super().__init__()
        self.meetings = meetings

    def v0(self) -> Any:
        options = super().v0()
        options.barrier_sync_fn = self.meetings
        return options


class _Meetings:
    """The meetings of the saves of one checkpointer, one after another.

    All processes make their checkpointers in the same order, so they are numbered alike.
    """

    def __init__(self, number: int) -> None:
        self._number, self._count = number, 0
        self._failure: str | None = None

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        """Waits until all processes are here.

        Raises:
            RuntimeError: one of them is elsewhere, or was.
        """
        if self._failure is None:
            self._count += 1
            name = f'paxtune/saves/{self._number}/{self._count}'
            # Orbax comes here also from a `finally`, on its way out.
            failed = sys.exception()
            said = [key, None if failed is None else f'{type(failed).__name__}: {failed}']
            heard = [
                json.loads(text) for text in processes.meet(name, json.dumps(said), timeout_ms)
            ]
            if heard != [[key, None]]:
                reasons = ' and '.join(sorted({told for _, told in heard if told}))
                self._failure = f'the save failed in some process: {reasons or "it is elsewhere"}'
        if self._failure is not None:
            raise RuntimeError(self._failure)
