"""Estimates a rank correlation from few trials."""

import itertools
import math
from collections.abc import Sequence

_IN_ORDER, _REVERSED = 4.0, 1.0
"""The prior at the start, as numbers of pairs: most rungs that people choose order rather well."""

_CAUTION = 0.25
"""The standard deviations by which the estimate lies below the mean."""


def expected_correlation(pairs: Sequence[tuple[float, float]], progress: float) -> float:
    """Estimates the correlation of scores at a rung with those at the end, with a prior.

    The share of pairs of trials that come in the same order on both sides has a Beta distribution.
    Pairs of few trials depend on each other. They count as many independent ones as have the same
    variance if there is no order. The share gives the correlation of a normal distribution.

    Args:
        pairs: the score at the rung and that at the end, of each trial.
        progress: the rung as a share of a whole trial. By the prior, later rungs order better.

    Example:
        >>> round(expected_correlation([], 0.1), 2)
        0.8
        >>> round(expected_correlation([(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)], 0.1), 2)
        0.96
        >>> round(expected_correlation([(1, 5), (2, 4), (3, 3), (4, 2), (5, 1)], 0.1), 2)
        -0.5
    """
    count, same, weight = len(pairs), 0.0, 0.0
    if count > 1:
        orders = [
            math.copysign(1.0, product) if (product := (a - x) * (b - y)) else 0.0
            for (a, b), (x, y) in itertools.combinations(pairs, 2)
        ]
        same = 0.5 + 0.5 * sum(orders) / len(orders)
        # Of Kendall's correlation, the variance is (4n + 10) / (9n(n - 1)).
        weight = 4.5 * count * (count - 1) / (2 * count + 5)
    total = _IN_ORDER + _REVERSED * (1.0 - progress) ** 2 + weight
    share = (_IN_ORDER + weight * same) / total
    share -= _CAUTION * math.sqrt(share * (1.0 - share) / (total + 1.0))
    return math.sin(math.pi * (share - 0.5))
