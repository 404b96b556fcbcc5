import numpy as np
import scipy.optimize
import scipy.special

_MIN_DISTINCT = 4  # Fewer distinct values do not determine a transform.
_POWERS = (-3.0, 5.0)
_FLOATS = np.finfo(np.float64)


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
    quantiles = (_ranks(values) - 0.5) / len(values)
    ranked = median + width * scipy.special.ndtri(quantiles)
    return _normalized(np.where(worse, ranked, values))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on; equal values share the mean of their ranks."""
    # `scipy.stats` has this, and takes a quarter of a second to import.
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return found


def _normal(values: np.ndarray) -> np.ndarray:
    if len(np.unique(values)) < _MIN_DISTINCT:
        return values
    # Applied to losses, the transform stretches the range near the best.
    return _normalized(-_yeo_johnson(-values))


def _yeo_johnson(values: np.ndarray) -> np.ndarray:
    """Transforms numbers of both signs by the likeliest power.

    `scipy.stats` finds the same power, but its checks take a sixth of a suggestion's time.
    """
    logs, is_positive = np.log1p(np.abs(values)), values >= 0
    positive, negative = logs[is_positive], logs[~is_positive]
    slope = np.sum(np.sign(values) * logs)
    transformed = np.empty_like(values)

    def transform(power: float) -> np.ndarray:
        transformed[is_positive] = _powered(positive, power)
        transformed[~is_positive] = -_powered(negative, 2 - power)
        return transformed

    def loss(power: float) -> float:
        variance = transform(power).var()
        if variance < _FLOATS.smallest_normal:
            return np.inf
        return -(-len(values) / 2 * np.log(variance) + (power - 1) * slope)

    # Within these powers, the variance of numbers 20 times as large is a normal float.
    width = np.log1p(20 * np.max(np.abs(values)))
    log_eps = np.log(_FLOATS.eps)
    low = (np.log(_FLOATS.tiny) - log_eps) / 2 / width
    high = (np.log(_FLOATS.max) + log_eps) / 2 / width
    ends = max(2 - high, low), min(2 - low, high)
    power = scipy.optimize.fminbound(loss, *ends, xtol=1.48e-8)
    return transform(float(np.clip(power, *_POWERS)))


def _powered(logs: np.ndarray, power: float) -> np.ndarray:
    """Returns (x^power - 1) / power of the numbers x with these logarithms."""
    return logs if abs(power) < _FLOATS.eps else np.expm1(power * logs) / power
