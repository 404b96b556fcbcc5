"""Scores as a Gaussian process likes them."""

import numpy as np
import scipy.special
import scipy.stats

_FEW = 4  # Values of which no distribution can be told.
_POWERS = (-3.0, 5.0)


def warp(scores: np.ndarray) -> np.ndarray:
    """Scores with mean 0 and variance 1, as normal as a smooth function makes them.

    What is worse than the median says no more than its rank: it becomes the quantile of a normal
    distribution that is as wide as the better half. So a run that diverged does not hide the
    differences between good ones (Golovin et al. 2017). Then follows the power transform of Yeo and
    Johnson (2000) under which they are most likely normal (as in Cowen-Rivers et al. 2022).

    Args:
        scores: [N], more is better.

    Returns:
        [N], in the same order.

    Example:
        >>> warp(np.array([1.0, 2.0, 3.0, 4.0, -1e9])).round(1).tolist()
        [-0.6, -0.0, 0.7, 1.4, -1.5]
    """
    return _normal(_with_better_half(_normalized(scores.astype(np.float64))))


def _normalized(values: np.ndarray) -> np.ndarray:
    # Divided first: the variance of very large numbers is not finite.
    centered = values / max(float(np.abs(values).max()), 1e-300)
    centered = centered - centered.mean()
    deviation = float(centered.std())
    return centered / deviation if deviation > 1e-12 else np.zeros_like(centered)


def _with_better_half(values: np.ndarray) -> np.ndarray:
    median = np.median(values)
    worse, better = values < median, values > median
    if not worse.any():
        return values
    width = 1.0
    if better.any():
        # The standard deviation of the normal distribution whose upper half this is.
        width = float(np.sqrt(np.mean((values[better] - median) ** 2)))
    shares = (scipy.stats.rankdata(values) - 0.5) / len(values)
    ranked = median + width * scipy.special.ndtri(shares)
    return _normalized(np.where(worse, ranked, values))


def _normal(values: np.ndarray) -> np.ndarray:
    if len(np.unique(values)) < _FEW:
        return values
    # Of losses: the transform stretches what is near the best.
    power = scipy.stats.yeojohnson_normmax(-values)
    return _normalized(-scipy.stats.yeojohnson(-values, float(np.clip(power, *_POWERS))))
