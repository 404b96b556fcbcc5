"""Which of several sources each example of a mixture comes from."""

import heapq
import math

import numpy as np

from trainer.inputs.permutation import random_words


class Strides:
    """An endless sequence of sources, in which each has its share at any time.

    Stride scheduling (Waldspurger & Weihl 1995): source `i` of share `w` is due at the times
    (j + phase_i) / w for j = 0, 1, 2, …, its phase drawn from the seed; the sequence is that of
    these times. So after any number of examples a source is at most a few examples away from its
    share, where independent draws would be off by the root of that number: two trials that differ
    in their weights differ by the weights, not by luck. And where the sequence continues can be
    computed from the number of examples alone.

    Example:
        >>> Strides([2, 1], seed=0).next(6).tolist()
        [0, 0, 1, 0, 0, 1]
    """

    def __init__(self, weights: list[float], seed: int, start: int = 0):
        """Begins at any place of the sequence.

        Args:
            weights: the shares of the sources, not all of them zero.
            seed: draws the phases.
            start: how many examples have been taken before.
        """
        total = math.fsum(weights)
        self._shares = [weight / total for weight in weights]
        # In (0, 1), so that the first example of a source is due within its first turn.
        self._phases = [(int(word) + 0.5) / 2**64 for word in _words(len(weights), seed)]
        # At this time surely no more than `start` examples were due: each source is less than one
        # ahead of its share.
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
        """When example number `n` of a source is due."""
        return (n + self._phases[source]) / self._shares[source]

    def _due_by(self, source: int, time: float) -> int:
        """How many examples of a source are due before a time."""
        if not self._shares[source] or time <= 0:
            return 0
        count = math.floor(time * self._shares[source])
        # By the same arithmetic as in `_time`, which rounds.
        while count > 0 and self._time(source, count - 1) >= time:
            count -= 1
        while self._time(source, count) < time:
            count += 1
        return count


def _words(count: int, seed: int) -> list[np.uint64]:
    """A word for each source, that does not depend on how many there are."""
    return [random_words(1, seed, source)[0] for source in range(count)]
