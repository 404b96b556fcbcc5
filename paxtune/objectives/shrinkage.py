"""Empirical-Bayes shrinkage of noisy rewards.

The maximum of many noisy values is biased upwards (J. E. Smith, R. L. Winkler, "The Optimizer's
Curse: Skepticism and Postdecision Surprise in Decision Analysis", Management Science 52(3), 2006).
The remedy is theirs: the mean of the posterior replaces the measured mean. True values and noise
are assumed to be normal. Their variances are estimated from the values, as in B. Efron, C. Morris,
"Data Analysis Using Stein's Estimator and its Generalizations", Journal of the American Statistical
Association 70(350), 1975. A mean of n values moves towards the center, further for small n.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

# Minimum of the signal variance, relative to the noise variance. With 0 all configurations would
# be equal if the noise explains all differences.
_MIN_SIGNAL = 0.01

# Means of equal values differ by rounding: closer to the center than this, relative to the distance
# of the best, a mean is equal to it.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Shrinkage:
    """Parameters of the shrinkage of means.

    Attributes:
        center: median of the means.
        noise: variance of one value around its true value.
        signal: variance of true values, in the same unit.
    """

    center: float
    noise: float
    signal: float

    @classmethod
    def estimate(cls, groups: Sequence[Sequence[float]]) -> 'Shrinkage | None':
        """Estimates the parameters from the values of each configuration (larger is better).

        Losses are unbounded above: a few diverged trials would hide differences between good ones.
        The better half therefore determines the signal variance. Distances below the median are
        clipped to the distance of the best above it.

        Returns:
            None if the noise cannot be estimated, or is zero.
        """
        means = [mean(group) for group in groups]
        center = statistics.median(means)
        span = max(means) - center
        replicated = [group for group in groups if len(group) > 1]
        if not replicated or not 0 < span < math.inf:
            return None

        def scaled(value: float) -> float:
            # The upper bound is for a tiny span due to rounding.
            return min(max((value - center) / span, -1.0), 1e100)

        squares = 0.0
        for group in replicated:
            values = [scaled(value) for value in group]
            squares += sum((value - mean(values)) ** 2 for value in values)
        noise = squares / sum(len(group) - 1 for group in replicated)
        better = [
            group
            for group, group_mean in zip(groups, means, strict=True)
            if scaled(group_mean) > _ROUNDING
        ]
        observed = mean([scaled(mean(group)) ** 2 for group in better])
        signal = observed - noise * mean([1 / len(group) for group in better])
        if not noise:
            return None
        return cls(center, noise, max(signal, _MIN_SIGNAL * noise))

    def shrink(self, value: float, count: int) -> float:
        """Expected true value given a mean of `count` values."""
        kept = self.signal / (self.signal + self.noise / count)
        return (1 - kept) * self.center + kept * value


def shrunken_means(groups: Sequence[Sequence[float]]) -> list[float]:
    """Expected true value of each configuration, given its values (larger is better).

    Returns:
        The means, shrunk towards the center if the noise can be estimated, which requires a group
        of two values. Groups of equal size keep the order of their means.

    Example:
        >>> lucky, confirmed, others = [7.0], [7.5, 5.5, 6.9], [[5.5], [4.5], [3.0], [4.0]]
        >>> [round(value, 1) for value in shrunken_means([lucky, confirmed, *others])]
        [6.2, 6.3, 5.3, 4.7, 3.8, 4.4]
    """
    means = [mean(group) for group in groups]
    found = Shrinkage.estimate(groups) if groups else None
    if found is None:
        return means
    return [found.shrink(m, len(group)) for m, group in zip(means, groups, strict=True)]


def mean(values: Sequence[float]) -> float:
    """Mean that does not overflow."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None for a single value.

    Example:
        >>> standard_error([1.0, 3.0]), standard_error([1.0])
        (1.0, None)
    """
    if len(values) < 2:
        return None
    center = mean(values)
    try:
        squares = sum((value - center) ** 2 for value in values)
    except OverflowError:
        return math.inf
    return math.sqrt(squares / (len(values) - 1) / len(values))
