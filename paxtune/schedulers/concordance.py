"""Estimates a rank correlation from few trials."""

import itertools
import math
from collections.abc import Sequence

_IN_ORDER, _REVERSED = 4.0, 1.0
"""The prior, as numbers of pairs: most rungs that people choose order trials rather well."""


def expected_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Computes the expected correlation of normal scores, with a prior for its order.

    The share of pairs of trials that come in the same order on both sides has a Beta distribution.
    Pairs of few trials depend on each other. They count as many independent ones as have the same
    variance if there is no order. The share gives the correlation of a normal distribution.

    Args:
        pairs: the two numbers of each trial.

    Example:
        >>> round(expected_correlation([]), 2)
        0.81
        >>> round(expected_correlation([(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]), 2)
        0.96
        >>> round(expected_correlation([(1, 5), (2, 4), (3, 3), (4, 2), (5, 1)]), 2)
        -0.42
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
    share = (_IN_ORDER + weight * same) / (_IN_ORDER + _REVERSED + weight)
    return math.sin(math.pi * (share - 0.5))
