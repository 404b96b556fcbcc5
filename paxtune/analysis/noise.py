"""Tests of values against the noise that replicates show.

All configurations share one variance of the noise: two or three replicates say little of their own.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from paxtune.objectives.shrinkage import mean

Array: TypeAlias = np.ndarray
Values: TypeAlias = Sequence[float] | Array


@dataclasses.dataclass(frozen=True)
class Noise:
    """The noise of one value, estimated from groups of replicates.

    Attributes:
        deviation: standard deviation of a value around the mean of its configuration.
        degrees: degrees of freedom of the estimate.
    """

    deviation: float
    degrees: int

    @classmethod
    def estimate(cls, groups: Sequence[Values]) -> 'Noise | None':
        """Estimates the noise from finite values; None if no group has two of them.

        Example:
            >>> Noise.estimate([[1.0, 3.0], [5.0, 7.0], [9.0]])
            Noise(deviation=1.4142135623730951, degrees=2)
        """
        found = [_finite(group) for group in groups if len(group) > 1]
        found = [group for group in found if group.size > 1]
        degrees = sum(group.size - 1 for group in found)
        if not degrees:
            return None
        with np.errstate(over='ignore', invalid='ignore'):
            squares = sum(float(np.sum((group - group.mean()) ** 2)) for group in found)
        return cls(math.sqrt(squares / degrees), degrees)

    def probability_of_gain(self, own: Sequence[float], other: Sequence[float]) -> float:
        """Computes the probability that one configuration is above another, by their means.

        It is the posterior of Student's test with equal variances and a flat prior.

        Example:
            >>> round(Noise(1.0, 10).probability_of_gain([3.0, 3.0], [1.0, 1.0]), 3)
            0.963
        """
        import scipy.special

        gain = mean(own) - mean(other)
        error = self.deviation * math.sqrt(1 / len(own) + 1 / len(other))
        if error == 0.0:
            return 0.5 if gain == 0.0 else float(gain > 0.0)
        return float(scipy.special.stdtr(self.degrees, gain / error))


def no_effect(groups: Sequence[Values]) -> float | None:
    """Computes the p-value of no difference between groups, by one-way analysis of variance.

    Args:
        groups: the values of each configuration. Values that are not finite do not count.

    Returns:
        1.0 where all values are equal. None if the noise is unknown, as without replicates.

    Example:
        >>> round(no_effect([[1.0, 3.0], [2.0, 4.0], [1.5, 3.1]]), 2)
        0.76
        >>> no_effect([[1.0], [2.0]]) is None
        True
    """
    import scipy.special

    found = [group for group in map(_finite, groups) if group.size]
    if len(found) < 2:
        return None
    values = np.concatenate(found)
    if values.min() == values.max():
        return 1.0
    scale = float(np.max(np.abs(values)))
    scaled = [group / scale for group in found]  # Squares of large losses would overflow.
    noise = Noise.estimate(scaled)
    if noise is None:
        return None
    center = float(np.mean(values / scale))
    between = sum(group.size * (float(group.mean()) - center) ** 2 for group in scaled)
    if noise.deviation == 0.0:
        return 0.0
    ratio = between / (len(found) - 1) / noise.deviation**2
    return float(scipy.special.fdtrc(len(found) - 1, noise.degrees, ratio))


def probability_below(successes: int, count: int, share: float) -> float:
    """Computes the probability that the chance of a success is below a share.

    The prior is Jeffreys'.

    Example:
        >>> round(probability_below(1, 10, 0.5), 3)
        0.996
    """
    import scipy.special

    return float(scipy.special.betainc(successes + 0.5, count - successes + 0.5, share))


def _finite(values: Values) -> Array:
    found: Array = np.asarray(values, float)
    return found[np.isfinite(found)]
