"""Scores as a Gaussian process likes them."""

import numpy as np
import scipy.stats


def warp(scores: np.ndarray) -> np.ndarray:
    """Scores with mean 0 and variance 1, outliers drawn in.

    What is worse than the median says no more than its rank: it becomes the quantile of a normal
    distribution that is as wide as the better half. So a run that diverged does not hide the
    differences between good ones (as in Golovin et al. 2017 and Song et al. 2024).

    Args:
        scores: [N], more is better.

    Returns:
        [N], in the same order.

    Example:
        >>> warp(np.array([1.0, 2.0, 3.0, 4.0, -1e9])).round(1).tolist()
        [-0.6, 0.1, 0.7, 1.4, -1.5]
    """
    median = np.median(scores)
    warped = scores.astype(np.float64).copy()
    worse = scores < median
    if worse.any():
        shares = (scipy.stats.rankdata(scores) - 0.5) / len(scores)
        better = scores > median
        width = 1.0
        if better.any():
            # The standard deviation of the normal distribution whose upper half this is.
            width = float(np.sqrt(np.mean((scores[better] - median) ** 2)))
        warped[worse] = median + width * scipy.stats.norm.ppf(shares[worse])
    deviation = warped.std()
    return (warped - warped.mean()) / (deviation if deviation > 0 else 1.0)
