"""Simulated processes, and the machines that they are on."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.scheduler import KilledError, Task
from trainer.symbolic.errors import is_disk_full

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclasses.dataclass
class Host:
    """A machine: its network, and its wall clock.

    Attributes:
        clock_step: seconds by which its wall clock is wrong.
        requests_lost_until: the time until which no request leaves it.
        replies_lost_until: the time until which no reply reaches it.
    """

    name: str
    clock_step: float = 0.0
    requests_lost_until: float = 0.0
    replies_lost_until: float = 0.0


class Process:
    """A process with threads.

    Attributes:
        is_alive: it has not ended.
        code: the exit code, negative for a signal; None before the end.
        stopped_until: the time until which SIGSTOP holds it.
        is_interrupted: SIGTERM asked it to save and to end.
        on_exit: called once, at its end.
        machine: its machine, if it is a driver or a worker.
    """

    def __init__(self, world: 'World', name: str, host: Host, machine: Any = None) -> None:
        self._world, self.name, self.host, self.machine = world, name, host, machine
        self.is_alive = True
        self.code: int | None = None
        self.stopped_until = 0.0
        self.is_interrupted = False
        self.on_exit: list[Callable[[], object]] = []
        self._tasks: list[Task] = []
        world.processes.append(self)

    def start(self, body: Callable[[], int | None]) -> None:
        """Starts the main thread; the process ends with the exit code that `body` returns."""

        def main() -> None:
            try:
                code = body()
            except Exception as error:
                if not is_disk_full(error):  # A full disk is one message of a command.
                    self._world.violate_by('traceback', self.name, error)
                code = 1
            self.exit(code or 0)

        self.spawn(main)

    def spawn(self, body: Callable[[], object]) -> None:
        """Starts a thread."""
        scheduler = self._world.scheduler
        task = Task(self, body)
        self._tasks.append(task)
        scheduler.at(0.0, lambda: scheduler.wake(task, 0))

    def stop(self, seconds: float) -> None:
        """Holds it, as SIGSTOP does."""
        self.stopped_until = max(self.stopped_until, self._world.now + seconds)
        self._world.say(self.name, f'is stopped for {seconds:.1f} s')

    def go_on(self) -> None:
        """Lets it run again, as SIGCONT does."""
        self.stopped_until = min(self.stopped_until, self._world.now)

    def interrupt(self) -> None:
        """Asks it to save and to end, as SIGTERM does; the second one ends it."""
        self._world.say(self.name, 'is interrupted')
        if self.is_interrupted:
            self.exit(143)
        self.is_interrupted = True

    def exit(self, code: int | None) -> None:
        """Ends the process.

        Raises:
            KilledError: the caller is a part of it.
        """
        scheduler = self._world.scheduler
        if self.is_alive:
            self.is_alive, self.code = False, code
            if code is not None:
                self._world.say(self.name, 'exits with', code)
            for task in self._tasks:
                scheduler.kill(task)
            self._tasks.clear()
            for action in self.on_exit:
                action()
        if scheduler.context.owner is self:
            raise KilledError
