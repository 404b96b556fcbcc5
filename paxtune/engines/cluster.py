"""Base of the engines whose workers are jobs of a cluster."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from paxtune.engines.base import Engine, Job
from paxtune.engines.cluster_worker import ClusterWorker
from paxtune.engines.remote import Remote
from paxtune.engines.supervised import (
    WorkerConfig,
    directory_or_temporary,
    require_one_process,
    watched,
)
from paxtune.running.runner import Runner
from paxtune.running.supervisor import modules_of
from paxtune.running.tuner import prepare_to_run
from paxtune.service.address import Service
from paxtune.service.leases import LEASE_SECONDS
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import join_study
from paxtune.storage.similar_studies import PriorStudy
from paxtune.storage.study_file import DATABASE
from paxtune.study.plan import SearchPlan
from paxtune.study.study import Study
from trainer.runtime.directory import JobPath
from trainer.symbolic import extras
from trainer.symbolic.errors import UserError


@dataclasses.dataclass(frozen=True)
class Cluster(WorkerConfig, Engine):
    """Runs the trials in workers that are jobs of a cluster. Any of them may end.

    A service keeps the study in its directory, and the workers reach it over the network. A new
    cluster overrides `processes_per_worker`, `serve` and `keep`, and has `Jobs` for a `JobKeeper`.
    `extra` is its name and that of its extra, whose module is `library`.

    Attributes:
        lease_seconds: the time that a worker may pass without a heartbeat.
    """

    has_workers, may_correct = True, False
    extra, library = '', ''

    lease_seconds: float = dataclasses.field(default=LEASE_SECONDS, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pack > 1:
            require_one_process(self.processes_per_worker)

    @property
    def processes_per_worker(self) -> int:
        """The number of processes that train a trial together."""
        return 1

    def directory(self, given: str | os.PathLike[str] | None) -> JobPath | None:
        if self.extra:
            extras.require(self.extra, f'--engine={self.extra}', self.library)
        return super().directory(directory_or_temporary(given))

    def require_function(self, runner: Runner) -> None:
        if self.processes_per_worker > 1:
            raise UserError('several processes train experiments; a function runs in one process')
        super().require_function(runner)

    def serve(self, directory: Path) -> AbstractContextManager[Service]:
        """Serves the study of a directory to workers while entered."""
        raise NotImplementedError(type(self).__name__)

    def keep(self, job: Job, worker: ClusterWorker, look: Callable[[], None]) -> None:
        """Keeps workers running until the study is done; calls `look` about once a second."""
        raise NotImplementedError(type(self).__name__)

    def open(
        self, directory: JobPath | None, plan: SearchPlan, prior_studies: Sequence[PriorStudy]
    ) -> tuple[Study, AbstractContextManager[object]]:
        assert isinstance(directory, Path)
        modules_of(plan.space.value)  # Before anything starts.
        with contextlib.ExitStack() as served:
            service = served.enter_context(self.serve(directory))
            study, _ = Remote(service).open(directory, plan, prior_studies)
            served.callback(study.close)
            return study, served.pop_all()

    def run(self, job: Job) -> None:
        prepare_to_run(job.study)
        worker = ClusterWorker.of(job, self, self.processes_per_worker)
        watched(job, lambda look: self.keep(job, worker, look))

    def reopened(self, study: Study) -> Study:
        assert isinstance(study.directory, Path)
        return join_study(LocalStore(Database(study.directory / DATABASE)), study.directory)
