"""Random numbers of a simulation, and the faults that they choose."""

import collections
import dataclasses
import hashlib
import math
from collections.abc import Mapping


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
