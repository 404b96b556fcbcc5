"""Prefetching of suggestions: the next one is made in a thread while trials run.

The history of suggestion n is fixed when trial n - 1 begins: its record keeps the trials that had
not ended then. So the suggestion is the same at once, in the thread, or after a kill.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from paxtune.study.record import Snapshot
from paxtune.study.trial import Trial


def pending_then(trials: Sequence[Trial]) -> Snapshot:
    """Finds the trials that had not ended when the newest begun trial began, itself included.

    Trials that never began here (imported ones, or those of a copied study) count as they stand.
    """
    for trial in reversed(trials):
        if (then := trial.record.snapshot) is not None:
            return {**then, trial.id: None}
    return {}


class Prefetcher:
    """A thread that makes suggestions one after another. It starts with the first one."""

    def __init__(self, suggest: Callable[[], None]) -> None:
        """Starts nothing yet; `suggest` does nothing if a suggestion waits or none is needed."""
        self._suggest = suggest
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def begin(self) -> None:
        """Starts the next suggestion, and returns at once."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, 'suggestions')
        # After the running one, which may have looked before the reason for this was there.
        self._last = self._pool.submit(self._suggest)

    def wait(self) -> bool:
        """Waits until everything that was started is done, and raises the suggestion's error.

        Returns False where nothing was started.
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
        """Waits for the running suggestion, ignores its errors, and starts nothing more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool, self._last = None, None
