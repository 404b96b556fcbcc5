"""Trials in this process, of a study that any Vizier server keeps."""

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from absl import logging

from paxtune.engines.in_process import InProcess
from paxtune.engines.supervised import directory_or_temporary
from paxtune.service.address import Service
from paxtune.service.vizier_client import FLAG
from paxtune.service.vizier_server_store import VizierServerStore
from paxtune.storage.open_study import open_plan
from paxtune.storage.similar_studies import PriorStudy
from paxtune.study.plan import SearchPlan
from paxtune.study.store import StudyStore
from paxtune.study.study import Study
from trainer.runtime import directory as directories
from trainer.runtime.directory import JobPath, locked


@dataclasses.dataclass(frozen=True)
class VizierStorage(InProcess):
    """Runs the trials in this process, one after another; a Vizier server keeps the study.

    Attributes:
        server: Vizier's own or `python -m paxtune.serve`, and the name of the study.
    """

    joins = keeps_study = False

    server: Service

    @property
    def description(self) -> str:
        server = self.server
        return f'in this process; the Vizier server at {server.endpoint} keeps {server.study}'

    def directory(self, given: str | os.PathLike[str] | None) -> JobPath | None:
        return directories.job_path(directory_or_temporary(given))

    def keeper(self) -> StudyStore:
        store = VizierServerStore(self.server)
        store.connect()
        return store

    def open(
        self, directory: JobPath | None, plan: SearchPlan, prior_studies: Sequence[PriorStudy]
    ) -> tuple[Study, AbstractContextManager[object]]:
        assert directory is not None
        directories.create(directory)
        with contextlib.ExitStack() as held:
            if isinstance(directory, Path):
                held.enter_context(locked(directory))
            store = VizierServerStore(self.server)
            with contextlib.ExitStack() as on_error:
                on_error.callback(store.close)
                store.connect()
                study = open_plan(directory, plan, priors=prior_studies, store=store)
                store.take_over()
                on_error.pop_all()
            logging.warning(
                "%s%s: Vizier's API has no leases and no compare-and-swap. Run one search of this "
                'study at a time: of two, the older one stops before its next write, and '
                'writes of both at the same moment may be lost.',
                FLAG,
                self.server.endpoint,
            )
            return study, held.pop_all()
