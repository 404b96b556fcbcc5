"""Acquisition functions."""

import math
from typing import Literal, NamedTuple

import numpy as np
import scipy.special

from paxtune.algorithms.encoding.points import EncodingSpec, encoder
from paxtune.algorithms.gp import model
from paxtune.algorithms.gp.model import Array, Posterior

Kind = Literal['log_ei', 'ucb', 'pe']

# Settings of Vizier's GP_UCB_PE. A point is worth exploring if the mean plus _EXPLORATION standard
# deviations reaches the incumbent; _SHORTFALL penalizes the difference.
_UCB, _EXPLORATION, _SHORTFALL = 1.8, 0.5, 10.0
LOG_DEVIATION_SHARE = math.log(1e-9)
"""Share of the deviation that counts beside the expected improvement.

Where no feasible place has any, the least known is tried, and none that is surely infeasible.
"""

_INFEASIBLE = 3.0  # Penalty in standard deviations of all scores.
_OUTSIDE = 1e4  # Penalty of each unit outside the trust region: its gradient leads back.


class AcquisitionContext(NamedTuple):
    """Inputs of an acquisition function besides the model.

    Attributes:
        incumbent: score to improve upon.
        prior: row of the known values [features].
        prior_weight: weight of each known value [features]; 0 where there is none.
        center: center of the trust region: a row [features].
        radius: half width of the trust region [features]; 1 for the whole range.
        log_cost_slopes: of the predicted logarithm of a trial's cost [columns].
    """

    incumbent: float
    prior: Array
    prior_weight: Array
    center: Array
    radius: Array
    log_cost_slopes: Array


def log_expected_improvement(
    mean: Array, deviation: Array, incumbent: float
) -> tuple[Array, Array]:
    """Logarithm of the expected improvement, accurate for tiny values too, and its slope.

    Ament et al. 2023 (arXiv 2310.20708). The mean, the standard deviation and the results are [B].
    The slope is the derivative by the improvement of the mean in standard deviations.
    """
    z = (mean - incumbent) / deviation
    # The tails of small values would be slow to compute.
    near_z, far_z = np.maximum(z, -5.0), np.minimum(z, -5.0)
    cumulative = scipy.special.ndtr(near_z)
    improvement = np.exp(-(near_z**2) / 2) / math.sqrt(2 * math.pi) + near_z * cumulative
    # The asymptotic series of φ(z) + z Φ(z), where the sum loses all of its digits.
    far = -(far_z**2) / 2 - math.log(2 * math.pi) / 2
    far = far - 2 * np.log(-far_z) + np.log1p(-3 / far_z**2)
    far_slope = -far_z - 2 / far_z + 6 / (far_z**3 - 3 * far_z)
    is_near = z > -5.0
    value = np.log(deviation) + np.where(is_near, np.log(improvement), far)
    return value, np.where(is_near, cumulative / improvement, far_slope)


def learnable_deviation(deviation: Array, noise: float) -> tuple[Array, Array]:
    """Standard deviation of the mean after one more trial at a place, and its derivative.

    Without noise it equals the process's, since the trial shows the value. A noisy trial at a
    place that is nearly known teaches little. With all of the deviation, trials would repeat each
    other. Expected quantile improvement, for the mean: Picheny et al. 2013 (Technometrics 55).

    Args:
        deviation: of the process [B].
        noise: its variance.

    Returns:
        The standard deviation [B], and its derivative by the deviation of the process.

    Example:
        >>> learnable_deviation(np.array([4.0, 0.1]), 9.0)[0].round(3).tolist()
        [3.2, 0.003]
    """
    total = np.sqrt(deviation**2 + noise)
    return deviation**2 / total, deviation * (deviation**2 + 2 * noise) / total**3


class Acquisition:
    """Acquisition function of rows of unit values, and its gradient."""

    def __init__(
        self,
        kind: Kind,
        encoding: EncodingSpec,
        posterior: Posterior,
        context: AcquisitionContext,
    ) -> None:
        self.encoding = encoding
        self._kind, self._posterior, self._context = kind, posterior, context
        self._encode = encoder(encoding)
        self._is_category = np.array(encoding.are_categorical)
        # The columns of points that equal a number of the row.
        self._is_number = (np.array(encoding.counts) == 0)[encoding.columns]

    def __call__(self, rows: Array) -> tuple[Array, Array]:
        """Returns rows [B, features], each unit value in the middle of its cell, and values [B]."""
        parts = [self._evaluate(part) for part in np.split(rows, self._ends(len(rows)))]
        rows, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        return rows, values

    def _ends(self, count: int) -> range:
        """Ends of parts of rows whose kernel matrices fit into the cache."""
        size = 2**17 // len(self._posterior.points)
        return range(size, count, size)

    def gradient(self, rows: Array) -> Array:
        """Returns the gradient [B, features]; 0 for choices."""
        rows, points, is_active = self._encode(rows)
        by_point = self._slope_at(points) - self._context.log_cost_slopes
        gradient = np.zeros_like(rows)
        features = self.encoding.columns[self._is_number]
        gradient[:, features] = by_point[:, self._is_number] * is_active[:, features]
        context = self._context
        gradient -= 2 * context.prior_weight * (rows - context.prior)
        beyond = rows - context.center
        gradient -= _OUTSIDE * np.sign(beyond) * (np.abs(beyond) > context.radius)
        return np.where(np.array(self.encoding.counts) == 0, gradient, 0.0)

    def _evaluate(self, rows: Array) -> tuple[Array, Array]:
        context = self._context
        rows, points, _ = self._encode(rows)
        distance = rows - context.prior
        # Two categories are equal or different; the unit values between them have no meaning.
        unequal = np.where(np.abs(distance) > 1e-6, 0.5, 0.0)
        distance = np.where(self._is_category, unequal, distance)
        outside = np.maximum(np.abs(rows - context.center) - context.radius, 0.0)
        value = self._value_at(points) - points @ context.log_cost_slopes
        return rows, value - distance**2 @ context.prior_weight - _OUTSIDE * np.sum(outside, axis=1)

    def _value_at(self, points: Array) -> Array:
        """Value of points [B, columns] by the model alone: [B]."""
        return self._value(model.predict(self._posterior, points))[0]

    def _slope_at(self, points: Array) -> Array:
        """Derivative of the value by the points [B, columns]."""
        prediction = model.predict(self._posterior, points)
        return model.gradient(self._posterior, prediction, *self._value(prediction)[1])

    def _value(self, at: model.Prediction) -> tuple[Array, list[Array]]:
        """Value [B], and its derivatives by mean, deviation and feasibility."""
        ones, incumbent = np.ones_like(at.mean), self._context.incumbent
        if self._kind == 'log_ei':
            deviation, by_process = learnable_deviation(at.deviation, self._posterior.noise)
            value, slope = log_expected_improvement(at.mean, deviation, incumbent)
            z = (at.mean - incumbent) / deviation
            by_mean, by_deviation = slope / deviation, by_process * (1 - z * slope) / deviation
            total = np.logaddexp(value, LOG_DEVIATION_SHARE + np.log(at.deviation))
            share = np.exp(value - total)
            by_deviation = share * by_deviation + (1 - share) / at.deviation
            return total + at.feasible, [share * by_mean, by_deviation, ones]
        feasible = np.exp(at.feasible)
        penalty = _INFEASIBLE * (1.0 - feasible)
        if self._kind == 'ucb':
            value = at.mean + _UCB * at.deviation - penalty
            return value, [ones, _UCB * ones, _INFEASIBLE * feasible]
        short = np.maximum(incumbent - (at.mean + _EXPLORATION * at.deviation), 0.0)
        value = at.deviation - _SHORTFALL * short - penalty
        is_short = _SHORTFALL * (short > 0)
        return value, [is_short, 1 + _EXPLORATION * is_short, _INFEASIBLE * feasible]
