"""Random numbers of a simulation."""

import collections
import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence

from tests.simulation.machine import Machine
from tests.simulation.process import Process
from tests.simulation.world import World


class Draws:
    """Draws numbers that depend on the seed and on their purpose, not on the order of purposes.

    So a fault that is left out shifts no other draw, and a failing schedule can be shrunk.

    Example:
        >>> draws, others = Draws(7), Draws(7)
        >>> _ = draws.share('latency', 'w1')
        >>> draws.share('fault', 'w1') == others.share('fault', 'w1')
        True
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._counts: collections.Counter[tuple[object, ...]] = collections.Counter()

    def share(self, *purpose: object) -> float:
        """Returns a number from 0 to 1, another one at each call."""
        self._counts[purpose] += 1
        text = repr((self._seed, purpose, self._counts[purpose]))
        digest = hashlib.blake2b(text.encode(), digest_size=6).digest()
        return int.from_bytes(digest) / 2**48

    def uniform(self, low: float, high: float, *purpose: object) -> float:
        """Returns a number in a range."""
        return low + (high - low) * self.share(*purpose)


RATES: Mapping[str, float] = {
    'request lost': 0.004,
    'request duplicated': 0.01,
    'request late': 0.01,
    'reply lost': 0.004,
    'reply slow': 0.004,
    'replies swallowed': 0.01,
    'crash before commit': 0.002,
    'crash after commit': 0.002,
    'connection lost before commit': 0.002,
    'connection lost after commit': 0.006,
    'database stalls': 0.0005,
    'killed while writing': 0.002,
    'power cut while writing': 0.001,
}
"""Probabilities of faults at a single call, commit or write."""

TIMED = (
    'kill worker',
    'stop worker',
    'kill driver',
    'stop driver',
    'interrupt driver',
    'kill machine',
    'stop machine',
    'cut both ways',
    'cut requests',
    'cut replies',
    'kill service',
    'stop service',
    'disk full',
    'step of the clock',
)
"""Faults that begin at a time."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the faults of a simulation.

    Attributes:
        rates: probabilities of point faults.
        timed: kinds of timed faults.
        between: mean seconds from one timed fault to the next.
        until: the time at which faults end.
        lease: seconds of a lease.
        horizon: the time at which the study must be done.
    """

    rates: Mapping[str, float] = dataclasses.field(default_factory=lambda: RATES)
    timed: tuple[str, ...] = TIMED
    between: float = 10.0
    until: float = 400.0
    lease: float = 30.0
    horizon: float = 1200.0


NONE = Settings(rates={}, timed=())


@dataclasses.dataclass(frozen=True)
class Timed:
    """A timed fault. `share` selects its target, `length` its duration."""

    name: str
    kind: str
    time: float
    share: float
    length: float


class Faults:
    """Decides which faults happen, and counts them.

    Attributes:
        happened: the names of the faults so far, in order.
        counts: their numbers, by kind.
    """

    def __init__(self, settings: Settings, draws: Draws, allowed: frozenset[str] | None) -> None:
        """Makes a schedule; `allowed` names the only faults that may happen, None allows all."""
        self.settings = settings
        self._draws, self._allowed = draws, allowed
        self.happened: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self._chances: collections.Counter[tuple[str, ...]] = collections.Counter()

    def happens(self, kind: str, now: float, *where: str) -> bool:
        """Returns True if a point fault happens now."""
        if not 0 < now < self.settings.until:
            return False
        key = kind, *where
        self._chances[key] += 1
        if self._draws.share(*key) >= self.settings.rates.get(kind, 0.0):
            return False
        return self._allow(f'{" ".join(key)} #{self._chances[key]}', kind)

    def timed(self) -> list[Timed]:
        """Lists the timed faults."""
        found: list[Timed] = []
        time, draws = 5.0, self._draws
        while self.settings.timed:
            time -= math.log(1.0 - draws.share('gap')) * self.settings.between
            if time >= self.settings.until:
                break
            kind = self.settings.timed[int(draws.share('kind') * len(self.settings.timed))]
            name = f'{kind} at {time:.1f}'
            found.append(Timed(name, kind, time, draws.share('target'), draws.share('length')))
        return found

    def begins(self, fault: Timed) -> bool:
        """Returns True if a timed fault happens."""
        return self._allow(fault.name, fault.kind)

    def _allow(self, name: str, kind: str) -> bool:
        if self._allowed is not None and name not in self._allowed:
            return False
        self.happened.append(name)
        self.counts[kind] += 1
        return True


def plan(world: World, machines: Sequence[Machine]) -> None:
    """Adds the timed faults of a world to its events."""

    def begin(fault: Timed) -> None:
        if world.faults.begins(fault):
            world.say('FAULT', fault.name)
            _begin(world, machines, fault)

    for each in world.faults.timed():
        world.scheduler.at(each.time, functools.partial(begin, each))


def _begin(world: World, machines: Sequence[Machine], fault: Timed) -> None:
    lease = world.faults.settings.lease
    length = 1.0 + fault.length * 2.5 * lease
    position = fault.share * len(machines)
    machine, rest = machines[int(position)], position % 1.0
    living = [each for each in machine.workers if each.is_alive]
    match fault.kind:
        case 'kill worker' if living:
            _chosen(living, rest).exit(-9)
        case 'stop worker' if living:
            _chosen(living, rest).stop(length)
        case 'kill driver' if machine.driver.is_alive:
            machine.driver.exit(-9)
        case 'stop driver':
            machine.driver.stop(length)
        case 'interrupt driver' if machine.driver.is_alive:
            machine.driver.interrupt()
        case 'kill machine':
            machine.die()
        case 'stop machine':
            for each in (*living, machine.driver):
                each.stop(length)
        case 'cut both ways' | 'cut requests' | 'cut replies':
            _cut(world, machine, fault.kind, length)
        case 'kill service' if world.service.process.is_alive:
            world.service.process.exit(-9)
        case 'stop service':
            world.service.process.stop(length * 0.6)
        case 'disk full':
            world.files.full_until = world.now + 1.0 + fault.length * 20.0
        case 'step of the clock':
            host = (machine.host, world.service.process.host)[rest > 0.5]
            host.clock_step += (fault.length - 0.5) * 7200.0


def _chosen(processes: Sequence[Process], share: float) -> Process:
    return processes[int(share * len(processes))]


def _cut(world: World, machine: Machine, kind: str, length: float) -> None:
    until = world.now + length
    if kind != 'cut replies':
        machine.host.requests_lost_until = until
    if kind != 'cut requests':
        machine.host.replies_lost_until = until
