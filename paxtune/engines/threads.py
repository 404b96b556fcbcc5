"""Trials in threads of this process, several at a time."""

import concurrent.futures
import dataclasses
import threading

from paxtune.engines.base import Engine, Job
from paxtune.running.event_poller import Watcher
from paxtune.running.tuner import Paused, Tuner, take_up
from trainer.symbolic.errors import UserError

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
        if self.count < 1:
            raise UserError(f'Threads({self.count}): expected at least 1')

    @property
    def description(self) -> str:
        return f'in {self.count} threads of this process'

    @property
    def trials_at_once(self) -> int:
        return self.count

    def run(self, job: Job) -> None:
        study, leaving = job.study, threading.Event()
        take_up(study)

        def work() -> None:
            Tuner(study, job.runner, (), lambda: leaving.is_set() or job.should_interrupt()).run()

        for callback in job.callbacks:
            callback.on_study_start(study)
        watcher = Watcher(study, job.callbacks)
        pool = concurrent.futures.ThreadPoolExecutor(self.count, 'trials')
        try:
            running = [pool.submit(work) for _ in range(self.count)]
            while concurrent.futures.wait(running, _LOOK_SECONDS).not_done:
                watcher.look()
                if any(each.done() and each.exception() is not None for each in running):
                    leaving.set()
            watcher.look()
        finally:
            leaving.set()
            pool.shutdown()
            for callback in job.callbacks:
                callback.on_study_end(study)
        errors = [error for each in running if (error := each.exception()) is not None]
        for error in sorted(errors, key=lambda each: isinstance(each, Paused)):
            raise error
