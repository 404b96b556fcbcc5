"""Trials of a study that a service keeps, among workers of other machines."""

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

from paxtune.engines.base import Engine, Job
from paxtune.engines.supervised import WorkerConfig, directory_or_temporary, supervise
from paxtune.running.tuner import prepare_to_run
from paxtune.service.address import Service
from paxtune.service.remote_store import RemoteStore
from paxtune.storage.open_study import open_plan
from paxtune.storage.similar_studies import PriorStudy
from paxtune.study.plan import SearchPlan
from paxtune.study.store import StudyStore
from paxtune.study.study import Study
from trainer.runtime import directory as directories
from trainer.runtime.directory import JobPath


@dataclasses.dataclass(frozen=True)
class Remote(Engine):
    """Runs trials of a study that a service keeps (`python -m paxtune.serve`).

    A trial that another machine has lost continues from its checkpoint where both write to one
    directory, on a network file system or in a store; elsewhere it starts again.

    Attributes:
        service: keeps the study.
        workers: of this machine.
    """

    has_workers, keeps_study = True, False

    service: Service
    workers: WorkerConfig = dataclasses.field(default_factory=WorkerConfig)

    @property
    def description(self) -> str:
        workers, service = self.workers, self.service
        at = f'of the service at {service.endpoint} ({service.study}){workers.pack_label}'
        return f'in {workers.count} workers here, {at}'

    @property
    def trials_at_once(self) -> int:
        return self.workers.trials_at_once

    @property
    def trials_per_process(self) -> int:
        return self.workers.pack

    def directory(self, given: str | os.PathLike[str] | None) -> JobPath | None:
        return directories.job_path(directory_or_temporary(given))

    def keeper(self) -> StudyStore:
        client = self.service.client()
        client.connect()
        return RemoteStore(client)

    def open(
        self, directory: JobPath | None, plan: SearchPlan, prior_studies: Sequence[PriorStudy]
    ) -> tuple[Study, AbstractContextManager[object]]:
        assert directory is not None
        directories.create(directory)
        study = open_plan(directory, plan, priors=prior_studies, store=self.keeper())
        return study, contextlib.nullcontext()

    def run(self, job: Job) -> None:
        prepare_to_run(job.study)
        supervise(job, self.workers, self.service)
