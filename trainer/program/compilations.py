"""Compiled programs by identity, several of them compiled side by side."""

import os
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from trainer.runtime import wall_clock
from trainer.runtime.wall_clock import CACHE_HITS, CACHE_MISSES, COMPILATION, WallClock, phase

Lower = Callable[[], Any]
"""Traces and lowers a program; the result has `compile`."""


class Compilations:
    """Programs by identity, each compiled once.

    Tracing holds Python's lock, and XLA does not. So `begin` traces one program after another, and
    XLA compiles them side by side in threads. The programs are the same in any order.

    Attributes:
        seconds: of each compiled program, from its tracing on.
    """

    def __init__(self) -> None:
        self.seconds: dict[Hashable, float] = {}
        self._compiled: dict[Hashable, Any] = {}
        self._begun: dict[Hashable, Future[tuple[Any, float, Mapping[str, float]]]] = {}

    def begin(self, programs: Mapping[Hashable, Lower]) -> None:
        """Begins to compile programs, and returns once they are traced.

        A program that cannot be traced is left out, so its first use raises the error. On a GPU
        and among several processes this does nothing: XLA times kernels to choose one, and
        processes must compile in the same order.
        """
        if jax.process_count() > 1 or jax.default_backend() == 'gpu':
            return
        missing = programs.keys() - self._compiled.keys() - self._begun.keys()
        threads = ThreadPoolExecutor(os.cpu_count(), 'compilation')
        with phase(COMPILATION):
            for identity in (each for each in programs if each in missing):
                began = time.perf_counter()
                try:
                    lowered = programs[identity]()
                except Exception:
                    continue
                self._begun[identity] = threads.submit(_timed, lowered, began)
        threads.shutdown(wait=False)

    def end(self) -> None:
        """Waits for the programs that `begin` left."""
        for identity in tuple(self._begun):
            self._taken(identity)

    def of(self, identity: Hashable, lower: Lower) -> Any:
        """The program of an identity, compiled now unless it is known or begun."""
        if identity in self._begun:
            self._taken(identity)
        if identity not in self._compiled:
            began = time.perf_counter()
            with phase(COMPILATION):
                self._compiled[identity] = lower().compile()
            self.seconds[identity] = time.perf_counter() - began
        return self._compiled[identity]

    def _taken(self, identity: Hashable) -> None:
        with phase(COMPILATION):
            compiled, seconds, profile = self._begun.pop(identity).result()
        self._compiled[identity], self.seconds[identity] = compiled, seconds
        if (clock := wall_clock.current()) is not None:
            for name in (CACHE_HITS, CACHE_MISSES):
                clock.count(name, int(profile.get(name, 0)))


def _timed(lowered: Any, began: float) -> tuple[Any, float, Mapping[str, float]]:
    """Compiles a program in a thread; its cache hits belong to the clock of another thread."""
    with wall_clock.measuring(WallClock(COMPILATION)) as clock:
        compiled = lowered.compile()
    return compiled, time.perf_counter() - began, clock.take()
