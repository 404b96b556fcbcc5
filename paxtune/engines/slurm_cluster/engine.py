"""Workers as jobs of a SLURM cluster."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from absl import logging

from paxtune.engines.base import Engine, Job
from paxtune.engines.network_service import network_service
from paxtune.engines.outcome import Outcome
from paxtune.engines.remote import Remote
from paxtune.engines.slurm_cluster import options
from paxtune.engines.slurm_cluster.job_queue import JobQueue
from paxtune.engines.slurm_cluster.worker_job import WorkerJob
from paxtune.engines.supervised import (
    WorkerConfig,
    directory_or_temporary,
    require_one_process,
    watched,
)
from paxtune.running.runner import Runner
from paxtune.running.supervisor import DETACHED, STOPPED, WorkerError, modules_of
from paxtune.running.tuner import take_up
from paxtune.service.leases import LEASE_SECONDS
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.study_file import DATABASE
from paxtune.study.plan import SearchPlan
from paxtune.study.study import Study
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError

_LOOK_SECONDS = 2.0
_MAX_LOST_IN_A_ROW = 3


@dataclasses.dataclass(frozen=True)
class Slurm(WorkerConfig, Engine):
    """Runs the trials in workers that are jobs of a SLURM cluster. Any of them may end.

    This process serves the study to them, on a machine that they can reach. If it dies, the same
    call finds the jobs again. All nodes need the directory.

    Attributes:
        options: of `sbatch`, by name; `time` is needed. The tasks of several `nodes`, or of several
            `ntasks-per-node`, train each trial together.
        lease_seconds: the time that a worker may pass without a heartbeat.
    """

    has_workers, may_correct = True, False

    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lease_seconds: float = LEASE_SECONDS

    def __post_init__(self) -> None:
        super().__post_init__()
        options.checked(self.options)
        if self.pack > 1:
            require_one_process(options.processes(self.options))

    @property
    def description(self) -> str:
        return f'in {self.count} workers, as jobs of SLURM{self.pack_label}'

    def directory(self, given: str | os.PathLike[str] | None) -> JobPath | None:
        return super().directory(directory_or_temporary(given))

    def require_function(self, runner: Runner) -> None:
        if options.processes(self.options) > 1:
            raise UserError('several processes train experiments; a function runs in one process')
        super().require_function(runner)

    def open(
        self, directory: JobPath | None, plan: SearchPlan, prior_studies: Sequence[JobPath]
    ) -> tuple[Study, AbstractContextManager[object]]:
        assert isinstance(directory, Path)
        modules_of(plan.space.value)  # Before anything starts.
        with contextlib.ExitStack() as served:
            service = served.enter_context(network_service(directory, self.lease_seconds))
            study, _ = Remote(service).open(directory, plan, prior_studies)
            return study, _read_after(study, served.pop_all())

    def run(self, job: Job) -> None:
        study = job.study
        assert isinstance(study.directory, Path)
        take_up(study)
        directory = study.directory.absolute()
        queue = JobQueue(directory, f'paxtune-{study.record.uuid[:12]}', self.options)
        worker = WorkerJob(
            str(directory),
            self.imports(study),
            self.flags(job),
            self.memory_bytes,
            study.search.faults.max_attempts,
            options.processes(self.options),
        )
        watched(job, lambda look: _Keeper(queue, worker, self.count, job).run(look))


@contextlib.contextmanager
def _read_after(study: Study, served: contextlib.ExitStack) -> Iterator[None]:
    """Ends the service when the search is left, and reads the study from its directory."""
    try:
        yield
    finally:
        assert isinstance(study.directory, Path)
        study.store.close()
        served.close()
        study.store = LocalStore(Database(study.directory / DATABASE))


class _Keeper:
    """Keeps a number of jobs in the queue while there are trials."""

    def __init__(self, queue: JobQueue, worker: WorkerJob, count: int, job: Job) -> None:
        self._queue, self._worker, self._count, self._job = queue, worker, count, job
        self._known: set[str] = set()
        self._reported: set[str] = set()
        self._lost = self._measured = 0
        self._is_over = False  # A worker has found that there are no more trials.

    def run(self, look: Callable[[], None]) -> None:
        """Returns when all jobs have ended; raises as `Supervisor.run`."""
        self._queue.open()
        is_leaving = False
        try:
            while True:
                look()
                is_asked = self._job.should_interrupt()
                if is_asked and not is_leaving:
                    self._queue.leave()
                    is_leaving = True
                live = self._queue.jobs()
                if live is not None:
                    is_ending = is_leaving or self._is_over or self._job.study.is_done
                    self._notice(live, is_ending)
                    if is_ending or self._is_over:
                        if not live:
                            return
                        self._queue.drop_waiting()
                    elif len(live) < self._count:
                        self._submit(live)
                time.sleep(_LOOK_SECONDS)
        except Exception:
            self._queue.cancel()
            raise

    def _submit(self, live: set[str]) -> None:
        try:
            self._known |= self._queue.submit(self._worker, self._count - len(live))
        except UserError as error:
            if not live:
                raise
            logging.log_every_n_seconds(logging.WARNING, '%s', 60, error)  # It may yet pass.

    def _notice(self, live: set[str], is_ending: bool) -> None:
        """Reports jobs that have ended; raises an error that ends the study's run."""
        outcomes = self._queue.outcomes()
        measured = sum(len(trial.measurements) for trial in self._job.study.trials)
        if measured > self._measured:
            self._measured, self._lost = measured, 0
        self._reported |= outcomes.keys()
        silent = self._known - live - self._reported
        outcomes |= dict.fromkeys(silent, Outcome(DETACHED, 'it left no message'))
        for each, outcome in sorted(outcomes.items()):
            self._ended(each, outcome, is_ending)
        self._known = live

    def _ended(self, job: str, outcome: Outcome, is_ending: bool) -> None:
        if outcome.code == 0:
            self._is_over = True
            return
        if outcome.code == 2:
            raise UserError(outcome.message)
        if outcome.code == STOPPED:
            raise WorkerError(outcome.message)
        if is_ending and outcome.code == DETACHED:
            return  # It was asked to, or was taken back before it began.
        why = outcome.message or 'it was cancelled, or its time was over'
        logging.warning('SLURM job %s ended: %s', job, why)
        self._lost += 1
        if self._lost >= _MAX_LOST_IN_A_ROW * self._count and not is_ending:
            raise WorkerError(
                f'{self._lost} jobs in a row ended without a measurement. The last one, {job}: '
                f'{why}. Their logs are in {Path(self._worker.directory) / "slurm"}'
            )
