"""Leases of the trials that this process runs, in a study that a service keeps."""

import dataclasses
import logging
import threading
from typing import TYPE_CHECKING

from paxtune.engines.base import Job
from paxtune.running.callbacks import Callback
from paxtune.running.supervisor import DETACHED
from paxtune.running.worker_line import exit_now
from paxtune.service.remote_store import RemoteStore
from paxtune.service.schema import WorkerOptions

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

_HEARTBEAT_SECONDS = 3.0

_LOG = logging.getLogger(__name__)


def leased(job: Job) -> Job:
    """Starts the heartbeat of this process, a worker, and returns the job with its steps counted.

    From here on, a lost lease ends the process, with the exit code `DETACHED`.
    """
    store, faults = job.study.store, job.study.search.faults
    assert isinstance(store, RemoteStore)
    store.options = WorkerOptions(
        trial_timeout=faults.trial_timeout or 0.0, max_attempts=faults.max_attempts
    )
    heartbeat = Heartbeat(store)

    def should_interrupt() -> bool:
        heartbeat.steps += 1
        return job.should_interrupt()

    heartbeat.start()
    callbacks = [*job.callbacks, HeartbeatCallback(heartbeat)]
    return dataclasses.replace(job, callbacks=callbacks, should_interrupt=should_interrupt)


class Heartbeat(threading.Thread):
    """Renews the lease of the trial that this worker runs. Without it, the process ends at once.

    Attributes:
        steps: how far the trial has come; the trainer counts each execution of steps.
    """

    def __init__(self, store: RemoteStore) -> None:
        super().__init__(name='heartbeat', daemon=True)
        self._store = store
        self.steps = 0

    def run(self) -> None:
        waiting = threading.Event()
        while not waiting.wait(min(_HEARTBEAT_SECONDS, self._store.lease_seconds / 10)):
            try:
                lost = self._store.heartbeat(self.steps)
            except Exception as error:
                lost = f'{type(error).__name__}: {error}'
            if lost is not None:
                _LOG.warning('the trial is lost: %s', lost)
                # At once: later writes of this process are void.
                exit_now(DETACHED)


class HeartbeatCallback(Callback):
    """Counts the steps of a trial from where it resumes.

    The steps of a trial that loses one worker after another must show its progress.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        self._heartbeat.steps = 0

    def on_trial_resume(self, study: 'Study', trial: 'Trial', step: int) -> None:
        # Some have been done by now.
        self._heartbeat.steps += step
