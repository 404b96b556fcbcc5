"""Random numbers of a simulation."""

import collections
import hashlib


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
