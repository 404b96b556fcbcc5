"""The simulated disk of all machines: it may be full, and processes are killed while they write."""

import builtins
import errno
import os
import types
from typing import Any

from tests.simulation.scheduler import KilledError
from tests.simulation.world import World


class Files:
    """Stands for `open` and the module `shutil`.

    Attributes:
        full_until: the time until which nothing can be written.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.full_until = 0.0

    def open(self, path: Any, mode: str = 'r') -> Any:
        """Opens a real file."""
        if mode == 'wb':
            self.before_write(str(path))
        return builtins.open(path, mode)

    def before_write(self, path: str) -> None:
        """Raises where a process cannot write now."""
        process = self._world.process
        if not process.is_alive:
            raise KilledError
        if self._world.now < self.full_until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self._world.happens('killed while writing', process.name):
            process.exit(-9)

    def disk_usage(self, path: Any) -> Any:
        """The free space, in bytes."""
        is_full = self._world.now < self.full_until
        return types.SimpleNamespace(free=0 if is_full else 2**40)
