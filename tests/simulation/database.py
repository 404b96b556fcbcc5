"""A database that crashes its process, loses its connection and stalls, around each commit."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy

from paxtune.storage.database import Database, DatabaseUnavailableError
from tests.simulation.process import Process
from tests.simulation.world import World


class FaultyDatabase(Database):
    """The database of one process of the service.

    Attributes:
        stall: seconds that the next transaction takes longer.
    """

    def __init__(self, world: World, path: Path, process: Process) -> None:
        self._world, self._process = world, process
        self.stall = 0.0
        super().__init__(path)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlalchemy.Connection]:
        if self._in_transaction:
            with super().transaction() as connection:
                yield connection
            return
        with super().transaction() as connection:
            yield connection
            seconds, self.stall = self.stall, 0.0
            if seconds:
                self._world.ledger.stalls.append((self._world.now, self._world.now + seconds))
                self._world.scheduler.sleep(seconds)
            self._fault('before')
        self._world.ledger.committed()
        self._fault('after')

    def _fault(self, when: str) -> None:
        if self._world.happens(f'crash {when} commit'):
            self._process.exit(-9)
        if self._world.happens(f'connection lost {when} commit'):
            raise DatabaseUnavailableError(f'the connection was lost {when} the commit')

    def let_go(self) -> None:
        """Unlocks the file, as the kernel does at the end of a process."""
        self._kind.let_go()

    def version(self) -> int:
        # No other process writes, and a new connection may happen to count as the one before.
        return 0
