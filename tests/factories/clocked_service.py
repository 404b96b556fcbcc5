"""A service of one study whose clock and faults only a test makes."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy

from paxtune.service.client import Client
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.remote_store import RemoteStore
from paxtune.service.server import Server
from paxtune.storage.database import Database, DatabaseUnavailableError
from paxtune.storage.open_study import open_study
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.study import Study
from tests.factories.toys import search, toy

Action = Callable[[], object]


class LostDatabase(Database):
    """A database whose connection a test may lose at the end of the next transaction.

    Attributes:
        commits: the number of transactions that were written.
        before_commit: called instead of the next commit.
        after_commit: called just after the next commit, which is in doubt.
    """

    commits = 0
    before_commit: Action | None = None
    after_commit: Action | None = None
    _depth = 0

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlalchemy.Connection]:
        with super().transaction() as connection:
            self._depth += 1
            try:
                yield connection
            finally:
                self._depth -= 1
            if not self._depth and (lost := self.before_commit):
                self.before_commit = None
                self._lose(lost)
        if not self._depth:
            self.commits += 1
            if lost := self.after_commit:
                self.after_commit = None
                self._lose(lost)

    def _lose(self, action: Action) -> None:
        action()
        raise DatabaseUnavailableError('lost in the last moment')


class Service:
    """A coordinator of one study behind a server, and a clock that only a test moves.

    Attributes:
        now: seconds on the clock.
        called: the methods that were called, in order.
        before: actions before the next call of a method.
        lost: actions after the next call of a method, whose reply is lost.
    """

    def __init__(self, path: Path) -> None:
        self.now = 0.0
        self.called: list[str] = []
        self.before: dict[str, Action] = {}
        self.lost: dict[str, Action] = {}
        self.database = LostDatabase(path)
        self.coordinator = self._hub(True)
        calls = _Calls(self)
        self._server = Server(lambda study: calls)
        self._server.start()
        self._studies: list[Study] = []

    def _hub(self, workers_may_live: bool) -> StudyCoordinator:
        store = VizierStore(self.database, 'toys')
        return StudyCoordinator(store, 10.0, workers_may_live, clock=lambda: self.now)

    def restart(self, workers_may_live: bool = True) -> None:
        """All that was in memory is forgotten."""
        self.coordinator = self._hub(workers_may_live)

    @property
    def endpoint(self) -> str:
        return f'127.0.0.1:{self._server.port}'

    def client(self) -> Client:
        return Client(self.endpoint, 'toys', patience=5.0)

    def store(self, worker: str) -> RemoteStore:
        return RemoteStore(self.client(), worker)

    def study(self, worker: str, **fields: Any) -> Study:
        """The study, opened by a worker."""
        return self.opened(self.store(worker), **fields)

    def opened(self, store: RemoteStore, **fields: Any) -> Study:
        """The study, opened with a store."""
        self._studies.append(open_study('anywhere', toy(search=search(**fields)), store=store))
        return self._studies[-1]

    def close(self) -> None:
        for study in self._studies:
            study.close()
        self._server.stop(0)
        self.database.close()


class _Calls:
    """Passes calls to the coordinator, with the faults of a test."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._service.coordinator, name)
        return functools.partial(self._call, name) if callable(called) else called

    def _call(self, name: str, **fields: Any) -> Any:
        service = self._service
        service.called.append(name)
        service.before.pop(name, lambda: None)()
        reply = getattr(service.coordinator, name)(**fields)
        if name in service.lost:
            service.lost.pop(name)()
            raise DatabaseUnavailableError('the reply is lost')
        return reply


def heartbeat(study: Study, progress: int = 0) -> str | None:
    assert isinstance(study.store, RemoteStore)
    return study.store.heartbeat(progress)
