import numpy as np
import scipy.special
import scipy.stats

_MIN_DISTINCT = 4  # Fewer distinct values do not determine a transform.
_POWERS = (-3.0, 5.0)


def warp(scores: np.ndarray) -> np.ndarray:
    """Warps scores [N] to mean 0, variance 1 and a nearly normal distribution, in the same order.

    Scores below the median become quantiles of a normal distribution as wide as the better half.
    A diverged run therefore does not hide differences between good ones (Golovin et al. 2017).
    The power transform of Yeo and Johnson (2000) with the maximum likelihood follows, as in
    Cowen-Rivers et al. 2022. Larger scores are better.

    Example:
        >>> warp(np.array([1.0, 2.0, 3.0, 4.0, -1e9])).round(1).tolist()
        [-0.6, -0.0, 0.7, 1.4, -1.5]
    """
    return _normal(_with_better_half(_normalized(scores.astype(np.float64))))


def _normalized(values: np.ndarray) -> np.ndarray:
    # Divided first: the variance of very large numbers overflows.
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
        # Standard deviation of the normal distribution with this upper half.
        width = float(np.sqrt(np.mean((values[better] - median) ** 2)))
    quantiles = (scipy.stats.rankdata(values) - 0.5) / len(values)
    ranked = median + width * scipy.special.ndtri(quantiles)
    return _normalized(np.where(worse, ranked, values))


def _normal(values: np.ndarray) -> np.ndarray:
    if len(np.unique(values)) < _MIN_DISTINCT:
        return values
    # Applied to losses, the transform stretches the range near the best.
    power = scipy.stats.yeojohnson_normmax(-values)
    return _normalized(-scipy.stats.yeojohnson(-values, float(np.clip(power, *_POWERS))))
