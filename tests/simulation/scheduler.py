"""The virtual clock, the queue of events, and threads of which only one runs at a time."""

import contextlib
import heapq
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class KilledError(BaseException):
    """Ends a task of a process that has ended. No code may catch it."""


class Owner(Protocol):
    """The process of a task: it may end, and may stand still until a time."""

    is_alive: bool
    stopped_until: float


class Task:
    """A thread of a simulated process. It runs while it has the baton, which it passes on."""

    def __init__(self, scheduler: 'Scheduler', owner: Owner, body: Callable[[], object]) -> None:
        self.owner, self.ticket = owner, 0
        self.is_killed = self.has_ended = False
        self._scheduler, self._body = scheduler, body
        self._thread: threading.Thread | None = None
        self._baton, self._end = threading.Lock(), threading.Lock()
        self._baton.acquire()
        self._end.acquire()
        self._has_killer = False

    def resume(self) -> None:
        """Passes the baton to this task."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._baton.release()

    def wait(self) -> None:
        """Waits for the baton."""
        if self._thread is None:  # That of the test began by itself.
            self._thread = threading.current_thread()
        self._baton.acquire()

    def kill(self) -> None:
        """Unwinds the task now. The one that has the baton unwinds when it looks next."""
        if self.has_ended or self.is_killed:
            return
        self.is_killed = True
        if self._thread is None:
            self.has_ended = True
        elif self is not self._scheduler.running:
            self._has_killer = True
            self._baton.release()
            self._end.acquire()

    def _run(self) -> None:
        self._scheduler.enter(self)
        try:
            self._body()
        except KilledError:
            pass
        except BaseException as error:
            self._scheduler.failure = error
        self.has_ended = True
        if self._has_killer:
            self._end.release()
        else:
            self._scheduler.pass_on(self)


class Inline:
    """An event that runs code of a process, which may not wait."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner


class Scheduler:
    """Runs events in the order of their times. A task that waits runs the events of others.

    Attributes:
        now: the virtual time, in seconds.
        context: the task, or the event, whose code runs.
        running: the task whose thread has the baton.
        failure: an error of the simulation itself.
    """

    def __init__(self, owner: Owner) -> None:
        """Makes a clock at 0; the calling thread is a task of `owner`."""
        self.now = 0.0
        self._main = Task(self, owner, lambda: None)
        self.context: Any = self._main
        self.running = self._main
        self.failure: BaseException | None = None
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._next: Task | None = None
        self._is_over: Callable[[], bool] = lambda: True

    def at(self, delay: float, action: Callable[[], object]) -> None:
        """Runs an action after a delay, in seconds. It wakes at most one task."""
        self._count += 1
        heapq.heappush(self._events, (self.now + max(delay, 0.0), self._count, action))

    def run(self, until: float, is_over: Callable[[], bool]) -> None:
        """Runs all events until a time, or until `is_over`."""
        self._is_over = lambda: (
            self.failure is not None or not self._events or self._events[0][0] > until or is_over()
        )
        self.pass_on(self._main)
        self.enter(self._main)
        if self.failure is not None:
            raise self.failure

    def enter(self, task: Task) -> None:
        """Notes that the thread of a task has the baton."""
        self.context = self.running = task

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
        task = self.task()
        self.pass_on(task)
        self.enter(task)
        if task.is_killed:
            raise KilledError

    def wake(self, task: Task, ticket: int) -> None:
        """Ends a wait, unless it has ended; that of a stopped process, when it goes on."""
        if task.has_ended or task.is_killed or task.ticket != ticket:
            return
        stopped = task.owner.stopped_until - self.now
        if stopped > 0:
            self.at(stopped, lambda: self.wake(task, ticket))
            return
        task.ticket += 1
        self._next = task

    @contextlib.contextmanager
    def inline(self, owner: Owner) -> Iterator[None]:
        """Runs code of a process in an event."""
        before, self.context = self.context, Inline(owner)
        try:
            yield
        finally:
            self.context = before

    def kill(self, task: Task) -> None:
        """Ends a task now."""
        context, running = self.context, self.running
        task.kill()
        self.context, self.running = context, running

    def pass_on(self, own: Task) -> None:
        """Runs events until a task has the baton: returns if it is `own`, or once it is again."""
        while own.has_ended or not own.is_killed:
            task, self._next = self._next, None
            if task is None and self._is_over():
                task = self._main
            if task is None:
                self._run_event()
                continue
            if task is not own:
                task.resume()
                if not own.has_ended:
                    own.wait()
            return

    def _run_event(self) -> None:
        self.now, _, action = heapq.heappop(self._events)
        self.context = self._main
        try:
            action()
        except BaseException as error:
            self.failure = error
