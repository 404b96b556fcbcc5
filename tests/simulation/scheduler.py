"""The virtual clock, the queue of events, and threads that switch only where they wait."""

import contextlib
import heapq
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

import greenlet


class KilledError(BaseException):
    """Ends a task of a process that has ended. No code may catch it."""


class Owner(Protocol):
    """The process of a task: it may end, and may stand still until a time."""

    is_alive: bool
    stopped_until: float


class Task:
    """A thread of a simulated process.

    Attributes:
        ticket: the number of waits that have ended.
        has_ended: its body has returned, or was killed.
    """

    def __init__(self, owner: Owner, body: Callable[[], object]) -> None:
        self.owner, self.ticket = owner, 0
        self._body = body
        self._greenlet = greenlet.greenlet(self._run)
        self.has_ended = False

    def resume(self) -> None:
        """Runs the task until it waits or ends."""
        self._greenlet.parent = greenlet.getcurrent()
        self._greenlet.switch()

    def wait(self) -> None:
        """Goes back to the code that has resumed this task."""
        self._greenlet.parent.switch()

    def kill(self) -> None:
        """Unwinds the task, unless it is the one that runs."""
        if self._is_running() or self.has_ended:
            return
        self.has_ended = True
        if self._greenlet:  # It has begun; else the caller would get the error.
            self._greenlet.parent = greenlet.getcurrent()
            self._greenlet.throw(KilledError)

    def _is_running(self) -> bool:
        """Returns True if it runs, or has resumed or ended the task that runs."""
        current = greenlet.getcurrent()
        while current is not None and current is not self._greenlet:
            current = current.parent
        return current is not None

    def _run(self) -> None:
        with contextlib.suppress(KilledError):
            self._body()
        self.has_ended = True


class Inline:
    """Code of a process, or of none, that an event runs and that may not wait."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner


Context: TypeAlias = Task | Inline


class Scheduler:
    """Runs events in the order of their times.

    Attributes:
        now: the virtual time, in seconds.
        context: the code that runs.
    """

    def __init__(self, owner: Owner) -> None:
        """Makes a clock at 0; code outside of any task belongs to `owner`."""
        self.now = 0.0
        self._outside = Inline(owner)
        self.context: Context = self._outside
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0

    def at(self, delay: float, action: Callable[[], object]) -> None:
        """Runs an action after a delay, in seconds."""
        self._count += 1
        heapq.heappush(self._events, (self.now + max(delay, 0.0), self._count, action))

    def run(self, until: float, is_over: Callable[[], bool]) -> None:
        """Runs all events until a time, or until `is_over`."""
        # `is_over` may start a process, which is an event.
        while not is_over() and self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()

    def task(self) -> Task:
        """Returns the task that asks.

        Raises:
            KilledError: its process has ended.
        """
        if not self.context.owner.is_alive:
            raise KilledError
        if not isinstance(self.context, Task):
            raise RuntimeError('an event may not wait')
        return self.context

    def sleep(self, seconds: float) -> None:
        """Waits for a time."""
        task = self.task()
        ticket = task.ticket
        self.at(seconds, lambda: self.wake(task, ticket))
        self.park()

    def park(self) -> None:
        """Waits until `wake` is called with the task's ticket."""
        self.task().wait()

    def wake(self, task: Task, ticket: int) -> None:
        """Ends a wait, unless it has ended; that of a stopped process, when it goes on."""
        if task.has_ended or task.ticket != ticket:
            return
        stopped = task.owner.stopped_until - self.now
        if stopped > 0:
            # In short waits: it may be continued before.
            self.at(min(stopped, 1.0), lambda: self.wake(task, ticket))
            return
        task.ticket += 1
        with self._switched(task):
            task.resume()

    @contextlib.contextmanager
    def inline(self, owner: Owner) -> Iterator[None]:
        """Runs code of a process in an event."""
        with self._switched(Inline(owner)):
            yield

    def kill(self, task: Task) -> None:
        """Ends a task now, unless it is the one that runs."""
        with self._switched(task):
            task.kill()

    @contextlib.contextmanager
    def _switched(self, context: Context) -> Iterator[None]:
        before, self.context = self.context, context
        try:
            yield
        finally:
            self.context = before
