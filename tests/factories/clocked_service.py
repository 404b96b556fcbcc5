"""A service of one study whose clock only a test moves."""

from pathlib import Path
from typing import Any

from paxtune.service.client import Client
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.remote_store import RemoteStore
from paxtune.service.server import Server
from paxtune.storage.database import Database
from paxtune.storage.open_study import open_study
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.study import Study
from tests.factories.toys import search, toy


class Service:
    """A coordinator of one study behind a server, and a clock that only a test moves."""

    def __init__(self, path: Path) -> None:
        self.now = 0.0
        self.database = Database(path)
        self.coordinator = self._hub(True)
        self._server = Server(lambda study: self.coordinator)
        self._server.start()
        self._studies: list[Study] = []

    def _hub(self, workers_may_live: bool) -> StudyCoordinator:
        store = VizierStore(self.database, 'toys')
        return StudyCoordinator(store, 10.0, workers_may_live, clock=lambda: self.now)

    def restart(self, workers_may_live: bool = True) -> None:
        """All that was in memory is forgotten."""
        self.coordinator = self._hub(workers_may_live)

    def client(self) -> Client:
        return Client(f'127.0.0.1:{self._server.port}', 'toys', patience=5.0)

    def store(self, worker: str) -> RemoteStore:
        return RemoteStore(self.client(), worker)

    def study(self, worker: str, **fields: Any) -> Study:
        """The study, opened by a worker."""
        value = toy(search=search(**fields))
        self._studies.append(open_study('anywhere', value, store=self.store(worker)))
        return self._studies[-1]

    def close(self) -> None:
        for study in self._studies:
            study.close()
        self._server.stop(0)
        self.database.close()


def heartbeat(study: Study, progress: int = 0) -> str | None:
    assert isinstance(study.store, RemoteStore)
    return study.store.heartbeat(progress)
