"""Which of several points are better, where each has several scores, and more is better in all.

Ranks and crowding distances are those of NSGA-II: K. Deb, A. Pratap, S. Agarwal, T. Meyarivan, "A
fast and elitist multiobjective genetic algorithm: NSGA-II", IEEE Transactions on Evolutionary
Computation 6(2), 2002. Scores are finite, and every point has equally many.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Scores: TypeAlias = Sequence[float]


def dominates(a: Scores, b: Scores) -> bool:
    """Whether `a` is nowhere worse than `b`, and somewhere better.

    Example:
        >>> dominates([2, 1], [1, 1]), dominates([2, 1], [1, 2]), dominates([1, 1], [1, 1])
        (True, False, False)
    """
    pairs = list(zip(a, b, strict=True))
    return all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)


def front(points: Sequence[Scores]) -> list[int]:
    """The indices, in order, of the points that no other dominates; equal ones are all among them.

    Example:
        >>> front([[1, 1], [3, 0], [0, 3], [2, 0], [3, 0]])
        [0, 1, 2, 4]
    """
    if not points:
        return []
    scores = _array(points)
    # The best in the first objective first, then in the second, and so on: no point is dominated
    # by one that comes after it, and one that is dominated at all is dominated by one of the front.
    order = np.lexsort(tuple(-column for column in scores.T[::-1]))
    found = np.empty_like(scores)
    kept: list[int] = []
    for index in order:
        others = found[: len(kept)]
        at_least = (others >= scores[index]).all(axis=1)
        if not (at_least & (others > scores[index]).any(axis=1)).any():
            found[len(kept)] = scores[index]
            kept.append(int(index))
    return sorted(kept)


def ranks(points: Sequence[Scores]) -> list[int]:
    """The rank of each point: 0 for the front, 1 for the front of the others, and so on.

    Memory grows with the square of the number of points.

    Example:
        >>> ranks([[1, 1], [2, 2], [0, 3], [0, 0]])
        [1, 0, 0, 2]
    """
    if not points:
        return []
    scores = _array(points)
    count = len(scores)
    at_least, above = np.ones((count, count), bool), np.zeros((count, count), bool)
    for column in scores.T:
        at_least &= column[:, None] >= column[None, :]
        above |= column[:, None] > column[None, :]
    better = at_least & above
    dominators = better.sum(axis=0)
    found = np.full(count, -1)
    rank = 0
    while (found < 0).any():
        current = (found < 0) & (dominators == 0)
        found[current] = rank
        dominators -= better[current].sum(axis=0)
        rank += 1
    return [int(each) for each in found]


def crowding(points: Sequence[Scores]) -> list[float]:
    """How far from its neighbours each point of a front lies: more is better, ∞ at the ends.

    The distance is the sum, over the objectives, of the difference between the two neighbours,
    where the whole front spans 1. An objective in which all points are equal does not count.

    Example:
        >>> crowding([[0, 4], [1, 3], [3, 1], [4, 0]])
        [inf, 1.5, 1.5, inf]
    """
    distances = [0.0] * len(points)
    for scores in zip(*points, strict=True):
        order = sorted(range(len(points)), key=lambda index: scores[index])
        span = scores[order[-1]] - scores[order[0]]
        if span == 0:
            continue
        distances[order[0]] = distances[order[-1]] = math.inf
        for before, index, after in zip(order, order[1:], order[2:], strict=False):
            distances[index] += (scores[after] - scores[before]) / span
    return distances


def _array(points: Sequence[Scores]) -> npt.NDArray[Any]:
    return np.asarray([tuple(point) for point in points], dtype=float)
