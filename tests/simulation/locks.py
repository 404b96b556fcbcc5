"""The module `threading` of simulated processes."""

import collections
import threading
from collections.abc import Callable
from typing import Any

from tests.simulation.scheduler import Task
from tests.simulation.world import World


class Threading:
    """Makes locks and events on the virtual clock; all else is of the real module."""

    def __init__(self, world: World) -> None:
        self._world = world

    def RLock(self) -> 'ReentrantLock':
        return ReentrantLock(self._world)

    Lock = RLock

    def Event(self) -> 'Event':
        return Event(self._world)

    def Condition(self, lock: 'ReentrantLock') -> 'Condition':
        return Condition(self._world, lock)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


class ReentrantLock:
    """A lock that its owner may take again."""

    def __init__(self, world: World) -> None:
        self._scheduler = world.scheduler
        self._owner: object | None = None
        self._depth = 0
        self._waiting: collections.deque[tuple[Task, int]] = collections.deque()

    def acquire(self) -> bool:
        own = self._scheduler.context
        while self._owner not in (None, own):
            task = self._scheduler.task()
            self._waiting.append((task, task.ticket))
            self._scheduler.park()
        self._owner = own
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if self._waiting:
                task, ticket = self._waiting.popleft()
                self._scheduler.at(0.0, lambda: self._scheduler.wake(task, ticket))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class Event:
    """An event that a few wait for, in short waits."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def wait(self, timeout: float) -> bool:
        if not self._is_set:
            self._world.scheduler.sleep(timeout)
        return self._is_set


class Condition:
    """A condition that is looked at from time to time; not at all where code may not wait."""

    def __init__(self, world: World, lock: ReentrantLock) -> None:
        self._world, self._lock = world, lock

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        scheduler = self._world.scheduler
        if isinstance(scheduler.context, Task) and not predicate():
            self._lock.release()
            scheduler.sleep(timeout)
            self._lock.acquire()
        return predicate()

    def notify(self) -> None:
        return
