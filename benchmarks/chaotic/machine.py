"""A machine of the scene: a search and its workers, with a host name and a network of their own."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from benchmarks.chaotic.proxy import Proxy

ROOT = Path(__file__).parents[2]

Process: TypeAlias = psutil.Process | subprocess.Popen[Any]

_UNSHARE = ['unshare', '--uts', *([] if os.geteuid() == 0 else ['--map-root-user'])]


@functools.cache
def has_host_names() -> bool:
    """Returns True if processes can have host names of their own here, as on several machines."""
    with contextlib.suppress(OSError):
        return not subprocess.run([*_UNSHARE, 'true'], capture_output=True, check=False).returncode
    return False


class Machine:
    """Runs one search, always with the same command.

    Attributes:
        name: of its host.
        network: between it and the service; None where the service is in the search.
        search: the process of the command.
        log: what the search has printed.
    """

    def __init__(
        self,
        name: str,
        flags: Mapping[str, object],
        environment: Mapping[str, str],
        network: Proxy | None,
        log: Path,
    ) -> None:
        self.name, self.network, self.log = name, network, log
        given = [f'--{flag}={value}' for flag, value in flags.items()]
        command = [sys.executable, '-m', 'paxtune.search', *given]
        named = [*_UNSHARE, 'sh', '-c', 'hostname "$0" && exec "$@"', name]
        self._command = [*named, *command] if has_host_names() else command
        self._environment = dict(environment)
        self._restarting = threading.Lock()
        self._all: list[subprocess.Popen[bytes]] = []
        log.touch()
        self.start()

    @property
    def search(self) -> subprocess.Popen[bytes]:
        return self._all[-1]

    def start(self) -> None:
        """Starts the search, or starts it again."""
        self._log_length = self.log.stat().st_size
        self._all.append(start(self._command, self.log, self._environment))

    def message(self) -> str:
        """Says what the newest process of the search has printed."""
        return self.log.read_bytes()[self._log_length :].decode(errors='replace')

    def workers(self) -> list[psutil.Process]:
        """Lists the processes that run trials now, in the order of their start."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self.search.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if 'paxtune.worker' in each.cmdline():
                        found.append(each)
        return found

    def kill_search(self) -> int:
        """Kills the search alone, and starts it again; returns the number of the killed process."""
        with self._restarting:
            pid = self.search.pid
            self.search.kill()
            self.search.wait()
            self.start()
            return pid

    def kill(self) -> None:
        """Kills all its processes at once, and starts it again: none of them sees another die."""
        with self._restarting:
            victims: list[psutil.Process | subprocess.Popen[bytes]]
            victims = [self.search, *self.workers()]
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for each in victims:
                    send(each, number)
            self.search.wait()
            self.start()

    def end(self) -> None:
        """Kills every search that it has started."""
        for process in self._all:
            process.kill()
            process.wait()


def start(
    command: list[str], log: Path, environment: Mapping[str, str]
) -> 'subprocess.Popen[bytes]':
    """Starts a process that appends what it prints to a file."""
    with open(log, 'ab') as file:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C is for this process, which ends them.
        )


def send(process: Process, number: signal.Signals) -> None:
    """Sends a signal, unless the process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


@contextlib.contextmanager
def stopped(*processes: Process) -> Iterator[None]:
    """Stops processes meanwhile."""
    for each in processes:
        send(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in processes:
            send(each, signal.SIGCONT)
