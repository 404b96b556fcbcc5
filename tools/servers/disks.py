"""A disk that can be full: a file system of its own in memory."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest


class MountRefusedError(SkipTest):
    """A file system cannot be mounted here. pytest skips the test that raises it."""


class SmallDisk:
    """A mounted file system with room for little.

    Attributes:
        path: where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / 'ballast'

    def fill(self, but: int = 0) -> None:
        """Leaves a number of bytes, in whole pages."""
        with contextlib.suppress(OSError), open(self._ballast, 'ab', buffering=0) as file:
            while True:
                file.write(bytes(4096))
        os.truncate(self._ballast, max(0, self._ballast.stat().st_size - but))

    def free(self) -> None:
        """Makes room again."""
        self._ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(path: Path, size: str = '1m') -> Iterator[SmallDisk]:
    """Mounts one.

    Raises:
        MountRefusedError: the user or the system does not allow it.
    """
    path.mkdir(parents=True, exist_ok=True)
    mount = ['mount', '-t', 'tmpfs', '-o', f'size={size}', 'paxtune-tests', str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        raise MountRefusedError(f'a file system cannot be mounted here: {mounted.stderr.strip()}')
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(['umount', '--lazy', str(path)], check=True)
