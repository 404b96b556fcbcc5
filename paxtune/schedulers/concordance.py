"""Estimates a rank correlation from few trials, most of which were selected."""

import bisect
import math
import statistics
from collections.abc import Sequence

import numpy as np

LEAST = 3
"""Trials with an end without which there is only the prior."""

_IN_ORDER, _REVERSED = 4.0, 1.0
"""The prior at the start, as numbers of pairs: most rungs that people choose order rather well."""

_CAUTION = 0.25
"""The standard deviations by which the estimate lies below the mean."""

_NORMAL = statistics.NormalDist()


def expected_correlation(
    rewards: Sequence[float], pairs: Sequence[tuple[float, float]], progress: float
) -> float:
    """Estimates the correlation of rewards at a rung with those at the end, with a prior.

    Trials that went on from a rung are the better ones there. Their own correlation is too low for
    all trials. The slope of their ends, by their places among all trials at the rung, does not
    depend on which of them went on. It gives the correlation (Thorndike 1949, case 2).

    The share of pairs of trials that come in the same order on both sides has a Beta distribution,
    and follows from the correlation. The trials count as many independent pairs as have the same
    variance if there is no order. They count less where their places lie close to each other.

    Args:
        rewards: of all trials at the rung.
        pairs: the reward at the rung and that at the end, of each trial with an end.
        progress: the rung as a share of a whole trial. By the prior, later rungs order better.

    Example:
        >>> round(expected_correlation([], [], 0.1), 2)
        0.8
        >>> rung = [1.0, 2.0, 3.0, 4.0, 5.0]
        >>> round(expected_correlation(rung, [(x, 2 * x) for x in rung], 0.1), 2)
        0.93
        >>> round(expected_correlation(rung, [(x, -x) for x in rung], 0.1), 2)
        -0.43
    """
    same = weight = 0.0
    if len(pairs) >= LEAST:
        early, late = zip(*pairs, strict=True)
        places = _normal_scores(early, sorted(rewards))
        correlation = _correlation(places, _normal_scores(late, sorted(late)))
        same = 0.5 + math.asin(correlation) / math.pi
        count = max(2.0, len(pairs) * min(1.0, float(np.var(places))))
        # Of Kendall's correlation, the variance is (4n + 10) / (9n(n - 1)).
        weight = 4.5 * count * (count - 1) / (2 * count + 5)
    total = _IN_ORDER + _REVERSED * (1.0 - progress) ** 2 + weight
    share = (_IN_ORDER + weight * same) / total
    share -= _CAUTION * math.sqrt(share * (1.0 - share) / (total + 1.0))
    return math.sin(math.pi * (share - 0.5))


def _normal_scores(values: Sequence[float], ordered: Sequence[float]) -> np.ndarray:
    """The places of values among ordered ones, as quantiles of a normal distribution."""
    ends = ((bisect.bisect_left(ordered, x), bisect.bisect_right(ordered, x)) for x in values)
    return np.array([_NORMAL.inv_cdf((low + high) / 2.0 / len(ordered)) for low, high in ends])


def _correlation(places: np.ndarray, ends: np.ndarray) -> float:
    """The correlation in a population whose places have variance 1."""
    x, y = places - places.mean(), ends - ends.mean()
    if not (variance := float(np.mean(x**2))) > 1e-9:
        return 0.0
    slope = float(np.mean(x * y)) / variance
    residual = float(np.sum((y - slope * x) ** 2)) / (len(x) - 2)
    return slope / math.sqrt(slope**2 + residual) if slope or residual else 0.0
