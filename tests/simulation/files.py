"""The simulated disk of all machines: it may be full, and lose what was not synced."""

import builtins
import contextlib
import errno
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy

from paxtune.storage.database import Database, DatabaseUnavailableError
from tests.simulation.process import Host, Process
from tests.simulation.scheduler import KilledError
from tests.simulation.world import World

WORKER = '-worker-'
"""In the name of the file that a process of a study in a directory has locked."""


class Files:
    """Stands for `open` and the modules `os` and `shutil` where the real code writes files.

    Attributes:
        full_until: the time until which nothing can be written.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.full_until = 0.0
        self._torn: dict[str, Host] = {}  # Written, and not synced.
        self._renamed: dict[str, tuple[Host, bytes | None]] = {}  # With the content before.
        self._open: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, mode: str | int = 'r', permissions: int = 0o777) -> Any:
        """Opens a real file, or the descriptor of a directory or of a lock."""
        if isinstance(mode, int):
            descriptor = os.open(path, mode, permissions)
            self._open[descriptor] = str(path)
            if WORKER in str(path) and mode & os.O_CREAT:
                self._belongs_to(Path(path), self._world.process)
            return descriptor
        if mode == 'wb':
            self.before_write(str(path))
            self._torn[str(path)] = self._world.process.host
        really = builtins.open
        file = really(path, mode)
        self._open[file.fileno()] = str(path)
        return file

    def _belongs_to(self, path: Path, owner: Process) -> None:
        """Notes whose file it is. The kernel unlocks that of a killed process, which stays."""
        self._world.ledger.owners[path.name.partition(WORKER)[2]] = owner

        def leave() -> None:
            if owner.code == -9 and path.parent.exists():
                # The simulated process removes it as it unwinds.
                self._world.scheduler.at(0.0, path.touch)

        owner.on_exit.append(leave)

    def getpid(self) -> int:
        """The number of the process whose code runs."""
        return self._world.processes.index(self._world.process)

    def fsync(self, descriptor: int) -> None:
        """Makes the content of a file, or the names in a directory, survive a power cut."""
        path = self._open[descriptor]
        if os.path.isdir(path):
            self._may_lose_power()
            for name in [each for each in self._renamed if os.path.dirname(each) == path]:
                del self._renamed[name]
        else:
            self._torn.pop(path, None)

    def replace(self, source: Any, target: Any) -> None:
        """Renames a file."""
        self._may_lose_power()
        source, target = str(source), str(target)
        before = Path(target).read_bytes() if os.path.exists(target) else None
        self._renamed[target] = self._world.process.host, before
        if source in self._torn:
            self._torn[target] = self._torn.pop(source)
        os.replace(source, target)

    def rename(self, source: Any, target: Any) -> None:
        """Renames a directory."""
        self._may_lose_power()
        self.before_write(str(target))
        os.rename(source, target)

    def link(self, source: Any, target: Any) -> None:
        """Gives a file another name."""
        self.before_write(str(target))
        os.link(source, target)

    def lose_unsynced(self, host: Host) -> None:
        """Tears the files of a machine that loses power, and forgets its last renames."""
        for path, owner in list(self._torn.items()):
            if owner is host:
                del self._torn[path]
                if os.path.exists(path):
                    os.truncate(path, os.path.getsize(path) // 2)
        for path, (owner, before) in list(self._renamed.items()):
            if owner is host:
                del self._renamed[path]
                if before is None:
                    Path(path).unlink(missing_ok=True)
                else:
                    Path(path).write_bytes(before)

    def before_write(self, path: str) -> None:
        """Raises where a process cannot write now."""
        process = self._world.process
        if not process.is_alive:
            raise KilledError
        if self._world.now < self.full_until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self._world.happens('killed while writing', process.name):
            process.exit(-9)

    def _may_lose_power(self) -> None:
        process = self._world.process
        if not process.is_alive:
            raise KilledError
        machine = process.machine
        if machine is not None and self._world.happens('power cut while writing', machine.name):
            machine.die()

    def disk_usage(self, path: Any) -> Any:
        """The free space, in bytes."""
        is_full = self._world.now < self.full_until
        return types.SimpleNamespace(free=0 if is_full else 2**40)


class FaultyDatabase(Database):
    """The database of one process, of the service or of a study in a directory.

    Attributes:
        stall: seconds that the next transaction takes longer.
    """

    def __init__(self, world: World, path: Path, process: Process, read_only: bool = False) -> None:
        self._world, self._process = world, process
        self.stall = 0.0
        super().__init__(path, read_only)

    @classmethod
    def of_caller(cls, world: World, path: Path, read_only: bool = False) -> 'FaultyDatabase':
        """Opens the database for the process whose code runs."""
        return cls(world, path, world.process, read_only)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlalchemy.Connection]:
        if not self._process.is_alive:
            raise KilledError
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
        if not self._world.is_local and self._world.happens(f'connection lost {when} commit'):
            self._world.waiting.doubt()
            raise DatabaseUnavailableError(f'the connection was lost {when} the commit')

    def release(self) -> None:
        """Unlocks the file, as the kernel does at the end of a process."""
        self._kind.release()

    def version(self) -> int:
        # No other process writes, and a new connection may happen to count as the one before.
        return super().version() if self._world.is_local else 0
