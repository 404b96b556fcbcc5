"""Prefetching of suggestions: the next one is made in a thread while trials run.

It is worthwhile only where suggestions are slow, since a prefetched one lacks the last results. The
record of trial n - 1 keeps the decision. It also keeps the trials that had not ended when it began,
which fixes the history of a prefetched suggestion n. So that suggestion is the same at once, in the
thread, or after a kill.
"""

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from paxtune.study.record import Snapshot, Status
from paxtune.study.trial import Trial

_MIN_SECONDS = 0.05  # A shorter wait is not noticed, and varies from run to run.
_RECENT = 2  # Suggestions. The faster one of them is without the compilation of a new process.


def pending_then(trials: Sequence[Trial]) -> Snapshot:
    """Finds the trials that had not ended when the newest begun trial began, itself included.

    Trials that never began here (imported ones, or those of a copied study) count as they stand.
    So do all trials where the next suggestion is not prefetched.
    """
    for trial in reversed(trials):
        if (then := trial.record.snapshot) is not None:
            return {**then, trial.id: None} if trial.record.prefetches_next else {}
    return {}


def is_worthwhile(trials: Sequence[Trial], share: float) -> bool:
    """Decides from recorded times if the next suggestion is made while trials run.

    Args:
        trials: all of the study.
        share: the share of a trial's time that a suggestion may take without it; 0 for always.
    """
    if not share:
        return True
    suggesting = [each.record.suggest_seconds for each in trials if each.record.suggest_seconds]
    running = [
        trial_seconds(each)
        for each in trials
        if each.status in (Status.COMPLETED, Status.STOPPED) and not each.lineage.is_imported
    ]
    if not suggesting or not running:
        return False
    return min(suggesting[-_RECENT:]) > max(share * statistics.median(running), _MIN_SECONDS)


def trial_seconds(trial: Trial) -> float:
    """Returns the run time of an ended trial; without one, the time since a worker claimed it."""
    record = trial.record
    if record.seconds or record.ended is None:
        return record.seconds
    claims = [event.time for event in record.history if event.event == 'claimed']
    return (record.ended - claims[0]).total_seconds() if claims else 0.0


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
