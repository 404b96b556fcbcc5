"""Pareto dominance between points with several scores; larger is better in all.

Ranks and crowding distances follow NSGA-II: K. Deb, A. Pratap, S. Agarwal, T. Meyarivan, "A
fast and elitist multiobjective genetic algorithm: NSGA-II", IEEE Transactions on Evolutionary
Computation 6(2), 2002. Scores are finite, and all points have the same number of them.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Scores: TypeAlias = Sequence[float]

Fitness: TypeAlias = tuple[int, float]
"""Negated rank and crowding distance: larger is better."""


def dominates(a: Scores, b: Scores) -> bool:
    """Returns True if `a` is nowhere worse than `b`, and better in at least one score.

    Example:
        >>> dominates([2, 1], [1, 1]), dominates([2, 1], [1, 2]), dominates([1, 1], [1, 1])
        (True, False, False)
    """
    pairs = list(zip(a, b, strict=True))
    return all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)


def front(points: Sequence[Scores]) -> list[int]:
    """Indices, in order, of the points that no other point dominates, equal ones included.

    Example:
        >>> front([[1, 1], [3, 0], [0, 3], [2, 0], [3, 0]])
        [0, 1, 2, 4]
    """
    if not points:
        return []
    scores = _array(points)
    # Sorted by the first objective, then by the second, and so on. No point dominates an earlier
    # one, and a dominated point is dominated by one of the front.
    order = np.lexsort(tuple(-column for column in scores.T[::-1]))
    if scores.shape[1] == 2:
        return sorted(order[_leads(*scores[order].T)].tolist())
    found = np.empty_like(scores)
    kept: list[int] = []
    for index in order:
        others = found[: len(kept)]
        at_least = (others >= scores[index]).all(axis=1)
        if not (at_least & (others > scores[index]).any(axis=1)).any():
            found[len(kept)] = scores[index]
            kept.append(int(index))
    return sorted(kept)


def _leads(first: Any, second: Any) -> Any:
    """Marks the points that none before them dominates: they raise the second score, or tie."""
    highest = np.maximum.accumulate(second)
    raises = np.append(True, highest[1:] > highest[:-1])
    leader = np.maximum.accumulate(np.where(raises, np.arange(len(second)), 0))
    return (first == first[leader]) & (second == second[leader])


def ranks(points: Sequence[Scores]) -> list[int]:
    """Rank of each point: 0 for the front, 1 for the front of the rest, and so on.

    Memory is quadratic in the number of points.

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


def crowding_distances(points: Sequence[Scores]) -> list[float]:
    """Crowding distance of each point of a front: larger is better, ∞ at the ends.

    The distance is the sum, over the objectives, of the difference between the two neighbours,
    relative to the span of the front. An objective in which all points are equal does not count.

    Example:
        >>> crowding_distances([[0, 4], [1, 3], [3, 1], [4, 0]])
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


def crowded_fitness(points: Sequence[Scores]) -> list[Fitness]:
    """Crowded comparison: the negated rank of each point, then its crowding distance.

    Example:
        >>> crowded_fitness([[0, 2], [1, 1], [2, 0], [0, 0]])
        [(0, inf), (0, 2.0), (0, inf), (-1, 0.0)]
    """
    ranked = ranks(points)
    found: list[Fitness] = [(0, 0.0)] * len(points)
    for rank in set(ranked):
        members = [index for index, each in enumerate(ranked) if each == rank]
        distances = crowding_distances([points[index] for index in members])
        for index, distance in zip(members, distances, strict=True):
            found[index] = (-rank, distance)
    return found


def _array(points: Sequence[Scores]) -> npt.NDArray[Any]:
    return np.asarray([tuple(point) for point in points], dtype=float)
