"""A worker as the function of a SLURM job."""

import dataclasses
import json
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from paxtune.engines.cluster_worker import ClusterWorker, Outcome, caught_outcome
from paxtune.engines.network_service import kept_service
from paxtune.running import supervisor
from paxtune.service import tokens
from trainer.runtime.interrupt import SignalEvent

FOLDER = 'slurm'
"""The folder in a study's directory with the files of its jobs."""

LEAVING = 'leaving'
"""The file there while workers have to end."""

_leaving, _ended = SignalEvent(), threading.Event()


@dataclasses.dataclass(frozen=True)
class WorkerJob:
    """Runs one process of a worker, kept by a supervisor. submitit calls it in each task of a job.

    A signal before the time limit saves the trial and queues the job again. SIGTERM saves and
    ends. Plain data, which submitit pickles into the study's directory.

    Attributes:
        worker: whose process this is.
    """

    worker: ClusterWorker

    def __call__(self) -> None:
        """Runs until the study is done, or a signal; raises SystemExit where another job may help.

        The main thread only waits: submitit calls `checkpoint` in it, in a signal handler.
        """
        from submitit.slurm.slurm import SlurmJobEnvironment

        signal.signal(signal.SIGTERM, _leave)
        if int(os.environ['SLURM_PROCID']):  # The first task queues the job again.
            signal.signal(SlurmJobEnvironment._usr_sig(), _leave)
        outcomes: list[Outcome] = []
        worker = threading.Thread(target=lambda: outcomes.append(self._outcome()))
        worker.start()
        while worker.is_alive():
            worker.join(0.2)
        (outcome,) = outcomes or [Outcome(1, 'an unexpected error: see the log of the job')]
        if outcome.code in (2, supervisor.STOPPED) or int(os.environ['SLURM_PROCID']) == 0:
            file = Path(self.worker.directory, FOLDER, f'{job_id()}.json')
            tokens.write_private(file, json.dumps(outcome._asdict()))
        if outcome.code and not _leaving.is_set():
            raise SystemExit(outcome.code)

    def checkpoint(self) -> Any:
        """Saves the trial, and returns the submission that queues the job again."""
        from submitit.helpers import DelayedSubmission

        _leaving.set()
        _ended.wait()
        return DelayedSubmission(self)

    def _outcome(self) -> Outcome:
        try:
            return caught_outcome(self._run)
        finally:
            _ended.set()

    def _run(self) -> Outcome:
        directory = Path(self.worker.directory)
        if (directory / FOLDER / LEAVING).exists():
            return Outcome(supervisor.DETACHED, 'the search was interrupted')
        joining = ['--coordinator=auto'] if self.worker.processes > 1 else []
        return self.worker.run(kept_service(directory), _number(), _leaving.is_set, joining)


def _leave(number: int, frame: FrameType | None) -> None:
    _leaving.set()


def job_id() -> str:
    """Returns the id of this job, as `squeue` prints it."""
    array, own = os.environ.get('SLURM_ARRAY_JOB_ID'), os.environ['SLURM_JOB_ID']
    return own if array is None else f'{array}_{os.environ["SLURM_ARRAY_TASK_ID"]}'


def _number() -> int:
    """Returns a number that no other process of the study has, for the names of logs."""
    return int(os.environ['SLURM_JOB_ID']) * 1000 + int(os.environ['SLURM_PROCID'])
