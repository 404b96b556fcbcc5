import heapq
import math
from collections.abc import Collection, Mapping

import numpy as np

from trainer.inputs.permutation import random_words


class Strides:
    """An infinite sequence of sources, in which each has its share at any time.

    Stride scheduling (Waldspurger & Weihl 1995): source `i` of share `w` is due at the times
    (j + phase_i) / w for j = 0, 1, 2, …, with a random phase. The sequence follows these times.
    After n examples a source is at most a few examples away from its share; independent draws would
    be off by sqrt(n). So trials with other weights differ by the weights and not by chance. The
    state follows from the number of examples alone.

    Example:
        >>> Strides([2, 1], seed=0).next(6).tolist()
        [0, 0, 1, 0, 0, 1]
    """

    def __init__(self, weights: list[float], seed: int, start: int = 0):
        """Starts after `start` examples of the sequence. Not all weights may be zero."""
        total = math.fsum(weights)
        self._shares = [weight / total for weight in weights]
        # The word of a source does not depend on the number of sources.
        words = [random_words(1, seed, source)[0] for source in range(len(weights))]
        # In (0, 1), so that the first example of a source is due within its first period.
        self._phases = [(int(word) + 0.5) / 2**64 for word in words]
        # At this time at most `start` examples were due: each source is less than one ahead of its
        # share.
        time = start - len(weights) - 1.0
        counts = [self._due_by(i, time) for i in range(len(weights))]
        self._queue = [(self._time(i, n), i, n) for i, n in enumerate(counts) if self._shares[i]]
        heapq.heapify(self._queue)
        self.next(start - sum(counts))

    def next(self, count: int) -> np.ndarray:
        """The sources (int64 indices) of the next `count` examples."""
        chosen = np.empty(count, np.int64)
        for k in range(count):
            _, i, n = self._queue[0]
            chosen[k] = i
            heapq.heapreplace(self._queue, (self._time(i, n + 1), i, n + 1))
        return chosen

    def _time(self, source: int, n: int) -> float:
        """The time at which example number `n` of a source is due."""
        return (n + self._phases[source]) / self._shares[source]

    def _due_by(self, source: int, time: float) -> int:
        """Number of examples of a source that are due before a time."""
        if not self._shares[source] or time <= 0:
            return 0
        count = math.floor(time * self._shares[source])
        # Compares with the rounded values of `_time`.
        while count > 0 and self._time(source, count - 1) >= time:
            count -= 1
        while self._time(source, count) < time:
            count += 1
        return count


def check_weights(weights: Mapping[str, float], field: str, names: Collection[str]) -> None:
    """Raises ValueError unless the weights fit the names of a field, and one is positive."""
    if set(weights) != set(names):
        raise ValueError(
            f'weights must have the names of {field}, {sorted(names)}: {sorted(weights)}'
        )
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f'weights.{name} must be at least 0 and finite: {weight}')
    if not any(weights.values()):
        raise ValueError('weights must not all be zero')
