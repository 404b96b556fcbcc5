"""A search over several processes that are one worker of a study in a service."""

import dataclasses
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

from paxtune.engines.base import Job
from paxtune.engines.leased import leased
from paxtune.engines.multi_host import MultiHost
from paxtune.engines.remote import Remote
from paxtune.engines.supervised import require_one_process
from paxtune.running.tuner import prepare_to_run
from paxtune.service.remote_store import RemoteStore
from paxtune.service.study_location import ServiceLocation
from paxtune.storage.open_study import join_study
from paxtune.storage.similar_studies import PriorStudy
from paxtune.study.plan import SearchPlan
from paxtune.study.store import StudyStore
from paxtune.study.study import Study
from paxtune.study.transitions import new_worker
from trainer.runtime import processes
from trainer.runtime.directory import JobPath


@dataclasses.dataclass(frozen=True)
class RemoteMultiHost(MultiHost):
    """Trains each trial in all processes together, as one worker of a study in a service.

    The first process owns a trial and its lease. A lost lease ends it, and so the others.

    Attributes:
        remote: the service; its workers are not used.
    """

    has_workers, keeps_study = True, False

    remote: Remote

    def __post_init__(self) -> None:
        if self.remote.workers.pack > 1:
            require_one_process(processes.count())

    @property
    def description(self) -> str:
        return f'in all processes together, of the service at {self.remote.service.endpoint}'

    def directory(self, given: str | os.PathLike[str] | None) -> JobPath | None:
        return self.remote.directory(given)

    def keeper(self) -> StudyStore:
        return self.remote.keeper()

    def open(
        self, directory: JobPath | None, plan: SearchPlan, prior_studies: Sequence[PriorStudy]
    ) -> tuple[Study, AbstractContextManager[object]]:
        return self.remote.open(directory, plan, prior_studies)

    def _read(self, directory: JobPath) -> Study:
        store = ServiceLocation(self.remote.service).store()
        return join_study(store, directory, may_lack_classes=True)

    def run(self, job: Job) -> None:
        store = job.study.store
        assert isinstance(store, RemoteStore)
        store.worker = new_worker()
        prepare_to_run(job.study)
        super().run(leased(job))
