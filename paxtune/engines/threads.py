"""Trials in threads of this process, several at a time."""

import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable
from typing import TypeAlias

from paxtune.engines.base import Engine, Job, require_counts
from paxtune.running.event_poller import Watcher
from paxtune.running.tuner import INTERRUPTED, Paused, Tuner, prepare_to_run
from paxtune.study.store import StudyStore
from paxtune.study.transitions import DetachedError
from trainer.runtime import wall_clock

_LOOK_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Threads(Engine):
    """Runs trials of a function in threads of this process.

    Pure Python takes turns there; NumPy, JAX, waiting and other processes do not.

    Attributes:
        count: the number of threads.
    """

    joins = True

    count: int

    def __post_init__(self) -> None:
        require_counts(self, 'count')

    @property
    def description(self) -> str:
        return f'in {self.count} threads of this process'

    @property
    def trials_at_once(self) -> int:
        return self.count

    def run(self, job: Job) -> None:
        def work(index: int, should_interrupt: Callable[[], bool]) -> None:
            Tuner(job.study, job.runner, (), should_interrupt).join()

        run_in_threads(job, self.count, work)


Work: TypeAlias = Callable[[int, Callable[[], bool]], None]
"""Runs trials in a thread: (the number of the thread, `should_interrupt`)."""


def run_in_threads(job: Job, count: int, work: Work) -> None:
    """Runs a study in threads until it is done, and reports to the callbacks of a job.

    Raises:
        Exception: as `in_threads`.
    """
    study = job.study
    prepare_to_run(study)
    note_start_up(study.store)
    for callback in job.callbacks:
        callback.on_study_start(study)
    watcher = Watcher(study, job.callbacks)
    try:
        in_threads(count, work, job.should_interrupt, watcher.look)
    finally:
        for callback in job.callbacks:
            callback.on_study_end(study)


def note_start_up(store: StudyStore) -> None:
    """Adds the time since this process began to the profile of the study: it is of no thread."""
    if (clock := wall_clock.current()) is not None:
        spent = clock.take()
        store.update_study(
            lambda record: dataclasses.replace(
                record, profile=wall_clock.added(record.profile, spent)
            )
        )


def in_threads(
    count: int,
    work: Work,
    should_interrupt: Callable[[], bool],
    look: Callable[[], None] = lambda: None,
) -> None:
    """Works in threads until all have ended; when one has failed, the others save and end.

    Args:
        count: the number of threads.
        look: called several times a second, and at the end.

    Raises:
        Exception: the error of a thread; one that another may have caused comes last.
    """
    leaving = threading.Event()

    def should_leave() -> bool:
        return leaving.is_set() or should_interrupt()

    with concurrent.futures.ThreadPoolExecutor(count, 'trials') as pool:
        try:
            running = [pool.submit(work, index, should_leave) for index in range(count)]
            while concurrent.futures.wait(running, _LOOK_SECONDS).not_done:
                look()
                if any(each.done() and each.exception() is not None for each in running):
                    leaving.set()
            look()
        finally:
            leaving.set()
    errors = [error for each in running if (error := each.exception()) is not None]
    for error in sorted(errors, key=_order):
        raise error


def _order(error: BaseException) -> tuple[bool, bool]:
    # A thread that another one made leave reports an interrupt.
    return isinstance(error, Paused | DetachedError), str(error) == INTERRUPTED
