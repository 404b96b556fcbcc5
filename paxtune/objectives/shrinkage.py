"""What noisy rewards can be expected to be worth, so that the best is not the luckiest.

The best of many noisy values is one that was lucky: who picks it is disappointed by what it is
worth (J. E. Smith, R. L. Winkler, "The Optimizer's Curse: Skepticism and Postdecision Surprise in
Decision Analysis", Management Science 52(3), 2006). The cure is theirs: expected is not what was
measured, but the mean of the posterior. Here true values and noise are taken for normal, and their
variances are estimated of the values themselves, as in B. Efron, C. Morris, "Data Analysis Using
Stein's Estimator and its Generalizations", Journal of the American Statistical Association 70(350),
1975. A mean of n values moves towards the middle of all, the more, the smaller n is.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

# How small the variance of true values is taken to be, next to that of the noise. With 0, where
# the noise explains all differences, all decisions would be equal.
_LEAST_SHARE = 0.01


@dataclasses.dataclass(frozen=True)
class Shrinkage:
    """How far means move towards the middle.

    Attributes:
        middle: the median of the means.
        noise: the variance of one value around its true one.
        spread: the variance of true values, in the same unit.
    """

    middle: float
    noise: float
    spread: float

    @classmethod
    def of(cls, groups: Sequence[Sequence[float]]) -> 'Shrinkage | None':
        """Estimates it.

        Losses have no end upwards: a few trials that diverge would hide how the good ones differ.
        So the spread is that of the better half, and what is worse than the median by more than
        the best is better counts as if it were just so bad.

        Args:
            groups: of each decision its values, at least one; more is better.

        Returns:
            None where nothing tells how large the noise is, or there seems to be none.
        """
        means = [mean(group) for group in groups]
        middle = statistics.median(means)
        reach = max(means) - middle
        repeated = [group for group in groups if len(group) > 1]
        if not repeated or not 0 < reach < math.inf:
            return None

        def scaled(value: float) -> float:
            # The upper end is for a spread that rounding has made next to nothing.
            return min(max((value - middle) / reach, -1.0), 1e100)

        squares = 0.0
        for group in repeated:
            values = [scaled(value) for value in group]
            squares += sum((value - mean(values)) ** 2 for value in values)
        noise = squares / sum(len(group) - 1 for group in repeated)
        better = [group for group, its_mean in zip(groups, means, strict=True) if its_mean > middle]
        seen = mean([scaled(mean(group)) ** 2 for group in better])
        spread = seen - noise * mean([1 / len(group) for group in better])
        if not noise:
            return None
        return cls(middle, noise, max(spread, _LEAST_SHARE * noise))

    def shrunk(self, value: float, count: int) -> float:
        """The true value to be expected behind a mean of `count` values."""
        kept = self.spread / (self.spread + self.noise / count)
        return (1 - kept) * self.middle + kept * value


def shrunk(groups: Sequence[Sequence[float]]) -> list[float]:
    """What to expect of each decision.

    Args:
        groups: of each decision its values, at least one; more is better.

    Returns:
        Of each the mean, moved towards the middle where the noise can be estimated, which takes a
        decision with two values. Where all have equally many, the order is that of the means.

    Example:
        >>> lucky, confirmed, others = [7.0], [7.5, 5.5, 6.9], [[5.5], [4.5], [3.0], [4.0]]
        >>> [round(value, 1) for value in shrunk([lucky, confirmed, *others])]
        [6.2, 6.3, 5.3, 4.7, 3.8, 4.4]
    """
    means = [mean(group) for group in groups]
    found = Shrinkage.of(groups) if groups else None
    if found is None:
        return means
    return [found.shrunk(m, len(group)) for m, group in zip(means, groups, strict=True)]


def mean(values: Sequence[float]) -> float:
    """The mean, also where the sum would be infinite."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean; None of a single value.

    Example:
        >>> standard_error([1.0, 3.0]), standard_error([1.0])
        (1.0, None)
    """
    if len(values) < 2:
        return None
    middle = mean(values)
    try:
        squares = sum((value - middle) ** 2 for value in values)
    except OverflowError:
        return math.inf
    return math.sqrt(squares / (len(values) - 1) / len(values))
