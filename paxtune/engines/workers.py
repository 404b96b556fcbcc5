"""Trials in worker processes of this machine."""

import dataclasses
import os
import secrets
from pathlib import Path

from paxtune.engines.base import Engine, Job
from paxtune.engines.supervised import WorkerConfig, directory_or_temporary, supervise
from paxtune.running.supervisor import wait_for_the_last
from paxtune.running.tuner import prepare_to_run
from paxtune.service.address import Service
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.leases import LEASE_SECONDS
from paxtune.service.schema import RequestRejectedError, Role
from paxtune.service.server import Server
from paxtune.service.tokens import Token
from paxtune.storage.local_store import LocalStore
from trainer.runtime.directory import JobPath


@dataclasses.dataclass(frozen=True)
class Workers(WorkerConfig, Engine):
    """Runs the trials in processes of this machine. If one dies, its trial continues in another.

    The study's database belongs to this process. Workers speak to a service inside it, which only
    this machine can reach and whose token only they know. Without a directory the study of a
    function is in a temporary one.

    Attributes:
        lease_seconds: the time that a worker may pass without a heartbeat.
    """

    has_workers = True

    lease_seconds: float = LEASE_SECONDS

    @property
    def description(self) -> str:
        return f'in {self.count} worker processes of this machine{self.pack_label}'

    def directory(self, given: str | os.PathLike[str] | None) -> JobPath | None:
        return super().directory(directory_or_temporary(given))

    def run(self, job: Job) -> None:
        study = job.study
        assert isinstance(study.directory, Path) and isinstance(study.store, LocalStore)
        wait_for_the_last(study.directory)
        prepare_to_run(study)
        # The service has the database from here on; this process only reads it.
        coordinator = StudyCoordinator(study.store, self.lease_seconds, workers_may_live=False)
        name = study.store.name
        token = Token(secrets.token_urlsafe(32), Role.WORK, name)

        def only(asked: str) -> StudyCoordinator:
            if asked != name:
                raise RequestRejectedError('missing', f'there is no study {asked!r} here')
            return coordinator

        with Server(only, tokens=[token], is_ready=coordinator.tick) as server:
            service = Service(f'127.0.0.1:{server.port}', name, token.secret)
            supervise(job, self, service)
