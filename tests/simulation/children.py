"""The modules `subprocess` and `psutil` of a simulated driver, which starts workers."""

import signal
import types
from typing import Any

from tests.simulation.process import Process
from tests.simulation.world import World


class Children:
    """The module `subprocess`: a command becomes a simulated worker."""

    PIPE = -1

    def __init__(self, world: World) -> None:
        self._world = world

    def Popen(self, command: list[str], **unused: Any) -> 'Child':
        driver = self._world.process
        flags = dict(each[2:].split('=', 1) for each in command if '=' in each)
        return Child(self._world, driver.machine.start_worker(flags['worker'], flags['definition']))


class Child:
    """A `Popen`."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self.process = world, process
        self.pid = world.processes.index(process)

    def poll(self) -> int | None:
        return self.process.code

    def wait(self) -> int | None:
        while self.process.is_alive:
            self._world.scheduler.sleep(0.1)
        return self.process.code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if not self.process.is_alive:
            return
        if number == signal.SIGKILL:
            self.process.exit(-9)
        elif number == signal.SIGCONT:
            self.process.go_on()
        else:
            self.process.interrupt()


class Line:
    """A `WorkerLine`: a worker that is not killed has reported its end."""

    stdin = -1

    def __init__(self) -> None:
        self._process: Process | None = None

    def started(self, child: Child) -> None:
        self._process = child.process

    def reported(self) -> int | None:
        code = None if self._process is None else self._process.code
        return None if code is None or code < 0 else code

    def ask_to_leave(self) -> None: ...

    def close(self) -> None: ...


class ProcessTable:
    """The module `psutil`."""

    STATUS_STOPPED = 'stopped'
    Error = LookupError

    def __init__(self, world: World) -> None:
        self._world = world

    def Process(self, pid: int) -> Any:
        found = self._world.processes[pid]
        is_stopped = found.stopped_until > self._world.now
        return types.SimpleNamespace(
            memory_info=lambda: types.SimpleNamespace(rss=0),
            status=lambda: self.STATUS_STOPPED if is_stopped else 'running',
        )
