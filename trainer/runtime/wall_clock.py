"""Where the wall clock goes: seconds by phase, which add up to the time that has passed.

A phase pauses while a phase inside it runs. Each moment thus counts once; time outside of all
phases is OTHER.

JAX runs steps in the background. Their time appears where the loop waits for them: a wait for the
result of a train step is STEPS, also before a measurement or a save. A wait for evaluated batches
is EVALUATION, which includes reading them. INPUT is reading training batches and copying them to
the devices; data that are read while a step runs cost no time, and do not appear.

LOST is the time of steps that had to run again, since no checkpoint held them when their process
was lost. A process cannot know it of itself: `after_loss` moves it out of the record of a lost
process. The goodput of a run is thus the share of STEPS in the profile of all its processes.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import ParamSpec, TypeAlias, TypeVar

P = ParamSpec('P')
T = TypeVar('T')

STEPS, INPUT, EVALUATION, COMPILATION = 'steps', 'input', 'evaluation', 'compilation'
INITIALIZATION, CHECKPOINTS, SUGGESTIONS = 'initialization', 'checkpoints', 'suggestions'
IDLE, START_UP, LOST, OTHER = 'idle', 'start_up', 'lost', 'other'

PHASES = (
    STEPS, INPUT, EVALUATION, COMPILATION, INITIALIZATION, CHECKPOINTS, SUGGESTIONS, IDLE, START_UP,
    LOST, OTHER,
)  # fmt: skip
"""The phases, in the order of tables."""

CACHE_HITS, CACHE_MISSES = 'cache_hits', 'cache_misses'
"""Programs that came from JAX's persistent cache, and programs that XLA compiled."""

_LARGEST = 4  # Phases on one line.

Profile: TypeAlias = Mapping[str, float]
"""Seconds by phase, and the numbers of cache hits and misses; nothing if there is none."""


class WallClock:
    """A stopwatch of one thread, which is always in one phase.

    Attributes:
        before: the profile of earlier processes of the same run, or trial.
        on_keep: called after `keep`.

    Example:
        >>> clock = WallClock()
        >>> with clock.phase(STEPS), clock.phase(COMPILATION):
        ...     clock.count(CACHE_HITS)
        >>> sorted(clock.take())
        ['cache_hits', 'compilation', 'other', 'steps']
    """

    def __init__(
        self,
        phase: str = OTHER,
        of_process: bool = False,
        read: Callable[[], float] | None = None,
    ) -> None:
        """Starts in a phase.

        Args:
            of_process: adds the time since the process started.
            read: reads a clock, in seconds; by default the clock of the process.
        """
        self.read = read or time.perf_counter
        self._seconds, self._counts = dict.fromkeys(PHASES, 0.0), dict[str, float]()
        self._stack, self._since = [phase], self.read()
        self._phases = {name: _Phase(self, name) for name in PHASES}
        self._compiled: list[tuple[float, float]] = []  # In this phase, since it began.
        self._unread = (phase, self._since) if of_process else None
        self.before: Profile = {}
        self.on_keep: Callable[[], None] = lambda: None
        self._kept = 0.0  # Seconds of STEPS whose results are in a checkpoint.

    @property
    def name(self) -> str:
        """The current phase."""
        return self._stack[-1]

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Context manager that counts its time for a phase."""
        return self._phases[name]

    def count(self, name: str, number: int = 1) -> None:
        """Counts an event."""
        self._counts[name] = self._counts.get(name, 0) + number

    def compiled(self, seconds: float) -> None:
        """Moves the last seconds of the current phase to COMPILATION.

        JAX reports a compilation when it has ended, and one inside another one before that.
        """
        if (current := self._stack[-1]) == COMPILATION:
            return
        now = self.read()
        began = max(now - seconds, self._since)
        moved = now - began
        while self._compiled and self._compiled[-1][1] > began:
            start, end = self._compiled.pop()
            moved -= end - max(start, began)
            began = min(start, began)
        self._compiled.append((began, now))
        self._seconds[current] -= moved
        self._seconds[COMPILATION] += moved

    def keep(self) -> None:
        """Notes that a checkpoint has the results of all steps so far."""
        self._pass()
        self._kept = self._seconds[STEPS]
        self.on_keep()

    @property
    def unkept(self) -> float:
        """Seconds of the steps that no checkpoint has, since the last `take`."""
        return max(0.0, self.pending().get(STEPS, 0.0) - self._kept)

    @property
    def whole(self) -> Profile:
        """The profile since the last `take`, and that of earlier processes."""
        return added(self.before, self.pending())

    def pending(self) -> dict[str, float]:
        """The profile since the last `take`."""
        self._pass()
        if self._unread is not None:
            phase, began = self._unread
            self._unread = None
            self._seconds[phase] += max(0.0, _age_of_process() - (self._since - began))
        return {name: value for name, value in (self._seconds | self._counts).items() if value}

    def take(self) -> dict[str, float]:
        """Returns the profile as `pending`, and starts again at zero."""
        found = self.pending()
        self._seconds, self._counts = dict.fromkeys(PHASES, 0.0), {}
        self._kept = 0.0
        return found

    def _pass(self) -> None:
        now = self.read()
        self._seconds[self._stack[-1]] += now - self._since
        self._since = now
        if self._compiled:
            self._compiled = []


class _Phase(AbstractContextManager[None]):
    """A phase of a clock, entered again and again: it is made once, since steps are short."""

    def __init__(self, clock: WallClock, name: str) -> None:
        self._clock, self._stack, self._name = clock, clock._stack, name

    def __enter__(self) -> None:
        self._clock._pass()
        self._stack.append(self._name)

    def __exit__(self, *error: object) -> None:
        self._clock._pass()
        self._stack.pop()


_current: ContextVar[WallClock | None] = ContextVar('wall_clock', default=None)

_UNTIMED = contextlib.nullcontext()


def of_process() -> WallClock:
    """Makes a clock for a command: it is in START_UP since the process has started."""
    return WallClock(START_UP, of_process=True)


def current() -> WallClock | None:
    """The clock of this thread, if there is one."""
    return _current.get()


def _starting() -> WallClock | None:
    clock = current()
    return clock if clock is not None and clock.name == START_UP else None


@contextlib.contextmanager
def measuring(clock: WallClock | None = None) -> Iterator[WallClock]:
    """Context manager in which this thread uses a clock.

    By default it continues the current clock in START_UP, which is before the first trial. Later it
    starts a new one: a trial may run another search.
    """
    clock = clock or _starting() or WallClock(START_UP)
    token = _current.set(clock)
    try:
        yield clock
    finally:
        _current.reset(token)


def phase(name: str) -> AbstractContextManager[None]:
    """Context manager that counts its time for a phase, if there is a clock."""
    clock = _current.get()
    return _UNTIMED if clock is None else clock.phase(name)


def keep() -> None:
    """Notes that a checkpoint has the results of all steps of this thread, if it has a clock."""
    if (clock := _current.get()) is not None:
        clock.keep()


def during(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes a decorator: calls of the function are in a phase. Not for generators."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            with phase(name):
                return function(*args, **kwargs)

        return timed

    return decorate


def added(*profiles: Profile) -> dict[str, float]:
    """Adds profiles up.

    Example:
        >>> added({'steps': 1.0, 'cache_hits': 2}, {'steps': 0.5})
        {'steps': 1.5, 'cache_hits': 2}
    """
    names = (*PHASES, CACHE_HITS, CACHE_MISSES)
    sums = {name: sum(each.get(name, 0) for each in profiles) for name in names}
    return {name: value for name, value in sums.items() if value}


def total_seconds(profile: Profile) -> float:
    """The wall clock of a profile: the sum over its phases."""
    return sum(profile.get(name, 0.0) for name in PHASES)


def goodput(profile: Profile) -> float | None:
    """The share of the wall clock in steps that count; None without any step.

    As in Google's ML Goodput Measurement, neither start-up, compilation, reading data, evaluation,
    checkpoints nor lost steps count. The time between two processes is in no profile.

    Example:
        >>> goodput({'steps': 6.0, 'compilation': 1.0, 'lost': 1.0})
        0.75
    """
    steps = profile.get(STEPS, 0.0)
    return steps / total_seconds(profile) if steps else None


def after_loss(profile: Profile, unkept: float, silent: float = 0.0) -> dict[str, float]:
    """The profile of a process that was lost.

    Args:
        profile: its last record.
        unkept: seconds of steps in that record that no checkpoint had.
        silent: seconds that it went on after that record.

    Example:
        >>> after_loss({'steps': 5.0, 'input': 1.0}, unkept=2.0, silent=0.5)
        {'steps': 3.0, 'input': 1.0, 'lost': 2.5}
    """
    unkept = min(unkept, profile.get(STEPS, 0.0))
    return added(profile, {STEPS: -unkept, LOST: unkept + silent})


def profile_text(profile: Profile, title: str) -> str:
    """Renders the largest phases and the goodput on one line; '' for an empty profile.

    Example:
        >>> profile_text({'steps': 6.0, 'start_up': 2.0}, 'Wall clock')
        'Wall clock: 8.0 s, steps 75%, start-up 25%. Goodput: 75%'
    """
    total = total_seconds(profile)
    if not total:
        return ''
    largest = sorted((name for name in PHASES if profile.get(name)), key=profile.__getitem__)
    shares = [
        f'{name.replace("_", "-")} {profile[name] / total:.0%}' for name in largest[::-1][:_LARGEST]
    ]
    parts = [f'{title}: {total:.1f} s, {", ".join(shares)}', *profile_notes(profile)]
    return '. '.join(parts)


def profile_notes(profile: Profile) -> list[str]:
    """Renders the goodput and the number of compiled programs, where there are any."""
    share = goodput(profile)
    hits, misses = (int(profile.get(name, 0)) for name in (CACHE_HITS, CACHE_MISSES))
    notes = [] if share is None else [f'Goodput: {share:.0%}']
    if hits + misses:
        notes.append(f'Compiled programs: {misses} by XLA, {hits} from the cache')
    return notes


def _age_of_process() -> float:
    import psutil

    return time.time() - psutil.Process(os.getpid()).create_time()
