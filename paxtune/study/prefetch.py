"""The next suggestion, made while trials run, and the history that it is made of.

What suggestion n is made of is settled when trial n - 1 begins: which trials had not ended then is
noted on that trial, in the transaction that hands it out. So the suggestion is the same whether it
is made at once, beside the trial, or after a kill.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from paxtune.storage.vizier_store import TrialProto, note, write_notes

if TYPE_CHECKING:
    from paxtune.study.trial import Trial

OPEN = 'open'
"""The note of a trial that says which earlier ones had not ended when it began."""

AHEAD = 'ahead'
"""The note of a trial that was suggested before anybody asked for it."""


def note_start(proto: TrialProto, unended: Mapping[int, int | None]) -> None:
    """Notes which earlier trials have not ended, where a trial begins for the first time.

    Args:
        proto: the trial, with its number.
        unended: all trials that have not ended, each with the step at which it is paused; None
            where it is not.
    """
    if note(proto, OPEN) is None:
        earlier = [(id_, step) for id_, step in sorted(unended.items()) if id_ < int(proto.id)]
        told = (str(id_) if step is None else f'{id_}@{step}' for id_, step in earlier)
        write_notes(proto, {OPEN: ','.join(told)})


def open_at_start(proto: TrialProto) -> dict[int, int | None] | None:
    """The earlier trials that had not ended when a trial began; None where that is not noted.

    Returns:
        As `note_start` was given them.
    """
    text = note(proto, OPEN)
    if text is None:
        return None
    parts = (each.partition('@') for each in text.split(',') if each)
    return {int(id_): int(step) if step else None for id_, _, step in parts}


def open_then(trials: Sequence['Trial']) -> dict[int, int | None]:
    """The trials that had not ended when the newest of those that have begun did, itself included.

    Trials that never began here (they are imported, or from a fork), or that began before that
    was noted, count as they stand.

    Args:
        trials: those below a number, by id.

    Returns:
        As `open_at_start`.
    """
    for trial in reversed(trials):
        if (then := trial.open_at_start) is not None:
            return then | {trial.id: None}
    return {}


class AskingAhead:
    """A thread in which suggestions are made ahead, one after another; there is none before."""

    def __init__(self, ask: Callable[[], None]) -> None:
        """Begins nothing yet.

        Args:
            ask: makes a suggestion unless one waits already, or none is needed.
        """
        self._ask = ask
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def begin(self) -> None:
        """Has the next suggestion made, and returns at once."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, 'suggestions')
        # After what is under way, which may have looked before the reason for this was there.
        self._last = self._pool.submit(self._ask)

    def wait(self) -> bool:
        """Waits until all that was begun is done.

        Returns:
            Whether there was anything.

        Raises:
            Exception: what making it has raised.
        """
        if self._last is None:
            return False
        try:
            self._last.result()
        finally:
            if self._last.done():
                self._last = None
        return True

    def close(self) -> None:
        """Waits for what is under way, whatever comes of it, and begins nothing more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool, self._last = None, None
