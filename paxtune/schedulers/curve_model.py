"""Extrapolates a learning curve with a mixture of shapes, fitted in closed form.

A curve is a + b · φ(x) + a random walk + noise. Here x is the used share of `max_resource`, and φ
is one of many shapes that rise from 0 to 1: power laws, exponentials, logarithms, sigmoids (Domhan
et al. 2015; Viering and Loog 2022), or constant 0. Given the shape and the sizes of noise and walk,
the model is Gaussian. The likelihood of the measurements is the weight of that combination, and its
prediction for the end is a normal distribution. Nothing is sampled.

The walk models the deviations from the shape. Without it, correlated residuals would count as
independent evidence for the shape that fits best, and predictions would be too confident.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

MOST_POINTS = 16
"""The most measurements that are used; of more, an evenly spaced subset."""

# In units of the curve's scale.
_NOISES = (0.003, 0.01, 0.03, 0.1, 0.3)
_WALKS = (0.01, 0.1, 0.3)
# The prior of the gain over the whole curve. Its mean is above 0, because training improves.
_GAIN, _GAIN_SPREAD = 0.5, 1.0
_START_SPREAD = 1.0
# The prior probability that a curve has no shape but its walk.
_FLAT = 0.5

# A start that was far worse says nothing about the end.
_MOST_SPREAD = 5.0


def chance_to_beat(shares: Sequence[float], scores: Sequence[float], best: float) -> float:
    """The probability that a curve ends above a score.

    It is invariant to shifting or scaling all scores, `best` included.

    Args:
        shares: the shares of `max_resource` at the measurements, in order, below 1.
        scores: the scores there; more is better.

    Example:
        >>> shares = [0.1, 0.2, 0.3, 0.4, 0.5]
        >>> rising, flat = [0.1, 0.2, 0.3, 0.4, 0.5], [0.3, 0.45, 0.49, 0.5, 0.5]
        >>> chance_to_beat(shares, rising, 0.9) > 0.3
        True
        >>> chance_to_beat(shares, flat, 0.9) < 0.02
        True
    """
    x, y = _recent(np.asarray(shares, np.float64), np.asarray(scores, np.float64), best)
    scale = max(float(np.ptp(y)), best - float(y.max()))
    if scale <= 0.0:  # It has always been as good as the best: there is no information.
        return 0.5
    fit = _fit(tuple(x))
    means, weights = _predictions(fit, (y - y[0]) / scale)
    goal = (best - float(y[0])) / scale
    # Imported here: the import takes a while.
    from scipy.special import ndtr

    return float(np.sum(weights * ndtr((means - goal) / fit.spreads)))


def _recent(x: Array, y: Array, best: float) -> tuple[Array, Array]:
    """Selects the measurements: without a start that was far worse, with spikes cut."""
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).round().astype(int))
    x, y = x[chosen], y[chosen]
    top = float(y.max())
    floor = top - _MOST_SPREAD * max(top - float(np.median(y)), best - top)
    first = int(np.argmax(y >= floor))
    return x[first:], np.maximum(y[first:], floor)


class _Fit(NamedTuple):
    """The part of the fit that does not depend on the scores, by (noise and walk, shape)."""

    precisions: Array  # The inverse covariance of noise and walk.
    projections: Array  # From measurements to evidence about start and gain.
    covariances: Array  # Of start and gain, given the measurements.
    prior: Array  # The evidence if start and gain equalled their prior means.
    fixed: Array  # The constant part of the log weights.
    means: Array  # The predictions if all measurements were 0.
    slopes: Array  # The derivatives of the predictions by the measurements.
    spreads: Array  # The standard deviations of the predictions.


def _predictions(fit: _Fit, values: Array) -> tuple[Array, Array]:
    """The prediction of each combination, and its weight."""
    evidence = fit.projections @ values - fit.prior
    explained = np.einsum('jki,jkil,jkl->jk', evidence, fit.covariances, evidence)
    # Squared residuals from the prior mean; their constant part is in `fixed`.
    expected = (fit.projections[..., 1, :] @ values) * _GAIN
    squares = ((fit.precisions @ values) @ values)[:, None] - 2.0 * expected
    logs = fit.fixed - 0.5 * (squares - explained)
    weights = np.exp(logs - logs.max())
    return fit.means + fit.slopes @ values, weights / weights.sum()


@functools.lru_cache(maxsize=256)  # Trials are measured at the same steps.
def _fit(x: tuple[float, ...]) -> _Fit:
    points = np.asarray(x)
    noises, walks = np.array(list(itertools.product(_NOISES, _WALKS))).T[:, :, None, None] ** 2
    shared = np.minimum.outer(points, points)
    covariance = noises * np.eye(len(points)) + walks * shared
    precisions = np.linalg.inv(covariance)
    rises, priors = _shapes(points)
    # By shape, measurement, and (start, gain).
    design = np.stack([np.ones_like(rises), rises], axis=-1)[:, :-1]
    at_end = np.stack([np.ones(len(rises)), rises[:, -1]], axis=-1)
    mean = np.array([0.0, _GAIN])
    sure = np.diag([_START_SPREAD**-2.0, _GAIN_SPREAD**-2.0])

    projections = np.einsum('kni,jnm->jkim', design, precisions)
    information = np.einsum('jkim,kml->jkil', projections, design)
    covariances = np.linalg.inv(information + sure)
    # The regression of noise and walk at the end on those at the measurements.
    follow = (walks[:, 0] * points)[:, None, :] @ precisions
    left = at_end - np.einsum('jn,kni->jki', follow[:, 0], design)
    slopes = follow + np.einsum('jki,jkil,jklm->jkm', left, covariances, projections)
    base = design @ mean
    means = at_end @ mean - np.einsum('jkn,kn->jk', slopes, base)
    own = walks + noises - follow @ (walks * points[:, None])
    variances = own[:, 0] + np.einsum('jki,jkil,jkl->jk', left, covariances, left)
    prior = information @ mean
    fixed = (
        np.log(priors)
        - 0.5 * np.linalg.slogdet(covariance)[1][:, None]
        + 0.5 * np.linalg.slogdet(covariances)[1]
        - 0.5 * (prior @ mean)
    )
    return _Fit(
        precisions, projections, covariances, prior, fixed, means, slopes, np.sqrt(variances)
    )


def _shapes(x: Array) -> tuple[Array, Array]:
    """The shapes at the measurements and at the end, and their prior probabilities.

    Each rises from 0 at the first measurement to 1 at the end, except the flat one.
    """
    at = np.append(x, 1.0)
    families: list[list[Array]] = [
        [-((1.0 + at / start) ** -power) for start in (0.003, 0.03, 0.3) for power in (0.5, 1, 2)],
        [-np.exp(-rate * at) for rate in (1.0, 3.0, 10.0, 30.0)],
        [np.log1p(at / start) for start in (0.001, 0.01, 0.1, 10.0)],
        [
            at**power / (middle**power + at**power)
            for middle in (0.1, 0.2, 0.4, 0.6, 0.8)
            for power in (3, 9)
        ],
    ]
    rises = np.stack([np.zeros_like(at), *itertools.chain.from_iterable(families)])
    rises[1:] = (rises[1:] - rises[1:, :1]) / (rises[1:, -1:] - rises[1:, :1])
    share = (1.0 - _FLAT) / len(families)
    each = [share / len(family) for family in families for _ in family]
    return rises, np.array([_FLAT, *each])
