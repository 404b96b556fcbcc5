"""Gaussian process: likelihood, fit and predictions, with their gradients.

It is written in NumPy: compilation and the import of JAX would take longer than small studies.
"""

import functools
import hashlib
import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.special

Array: TypeAlias = np.ndarray

_JITTER = 1e-8
_TRTRI = scipy.linalg.get_lapack_funcs('trtri')  # Inverts a triangular matrix.
_MANY = 128  # Trials.
_NUM_DRAWN = 3
_LABEL_NOISE = 0.01
_LABEL_THRESHOLD, _LABEL_WIDTH = 0.5, 0.2

# Mean and standard deviation of log-normal priors. Length scales are about the whole range in any
# number of dimensions. The variance far from all trials stays small, so that a search with few
# trials stays near good ones.
_LOG_AMPLITUDE = (0.0, 1.0)
_LOG_NOISE = (-6.0, 2.0)
_LOG_LENGTH = (0.0, 1.0)
_NOISE = (1e-6, 1.0)
_AMPLITUDE = (5e-2, 20.0)
_LENGTH = (5e-3, 1e3)


class TrainingData(NamedTuple):
    """Observations.

    Attributes:
        points: encoded decisions [N, columns].
        values: warped scores [N]; 0 where there is none.
        is_observed: mask of completed trials [N].
        is_observed_or_pending: mask of completed and running trials [N].
        is_infeasible: mask of infeasible trials [N].
        loadings: correlation of each trial's study with this study [N]; None if all are of this.
        studies: number of each trial's study [N]; None if all are of this study.
    """

    points: Array
    values: Array
    is_observed: Array
    is_observed_or_pending: Array
    is_infeasible: Array
    loadings: Array | None = None
    studies: Array | None = None

    def relations(self, of: Array) -> Array | float:
        """Correlations of the processes of masked trials' studies [M, M]; 1 with one study.

        Multi-task process of one factor: two earlier studies are as alike as both are like this.
        """
        if self.loadings is None or self.studies is None:
            return 1.0
        loadings, studies = self.loadings[of], self.studies[of]
        return np.where(studies[:, None] == studies, 1.0, np.outer(loadings, loadings))


class Posterior(NamedTuple):
    """Factors of the posterior distribution.

    Attributes:
        points: points [N, columns], divided by the length scales.
        lengths: length scales [columns].
        amplitude: prior variance.
        noise: variance of a score about the process.
        weights: of the completed trials, for the mean [N].
        inverse_cholesky: of the completed and running trials, for the variance [M, N].
        feasibility_weights: of the completed and infeasible trials [N].
    """

    points: Array
    lengths: Array
    amplitude: float
    noise: float
    weights: Array
    inverse_cholesky: Array
    feasibility_weights: Array


class Prediction(NamedTuple):
    """Predictions of points [B, columns], and the factors of their gradients.

    Attributes:
        mean: the mean [B].
        deviation: the standard deviation [B], which running trials lower, too.
        feasible: the logarithm of the probability of feasibility [B].
        margin: the label of feasibility above its threshold, in widths [B].
        points: the points, divided by the length scales.
        distances: distances from the observations [B, N]: see `_distances`.
        projected: the kernel matrix times the inverse Cholesky factor [B, M].
    """

    mean: Array
    deviation: Array
    feasible: Array
    margin: Array
    points: Array
    distances: Array
    projected: Array


def _distances(ones: Array, others: Array) -> Array:
    """Distances of points [A, columns] and [B, columns], times √5: [A, B]."""
    squares = (-2.0 * ones) @ others.T
    norms = (ones**2).sum(1)
    squares += norms[:, None]
    squares += norms if others is ones else (others**2).sum(1)
    np.maximum(squares, 1e-15, out=squares)  # Rounding may lead below 0.
    squares *= 5.0
    return np.sqrt(squares, out=squares)


def matern52(distances: Array) -> Array:
    """Matérn-5/2 kernel matrix, given distances times √5."""
    kernel = distances / 3.0
    kernel += 1.0
    kernel *= distances
    kernel += 1.0
    kernel *= np.exp(-distances)
    return kernel


def _slopes(distances: Array) -> Array:
    """Slopes of the kernel matrix.

    The gradient of an element, with respect to its first point, is minus its slope times the
    difference of the points.
    """
    slopes = distances + 1.0
    slopes *= 5 / 3
    slopes *= np.exp(-distances)
    return slopes


@functools.cache
def _hyperprior(num_features: int) -> tuple[Array, Array]:
    both = np.array([_LOG_AMPLITUDE, _LOG_NOISE, *[_LOG_LENGTH] * num_features])
    return both[:, 0], both[:, 1]


def _cholesky(matrix: Array, noise: float) -> tuple[Array, Array]:
    """Cholesky factor of a kernel matrix with noise, and the inverse of the factor.

    Noise is added to the matrix itself.
    """
    matrix.flat[:: len(matrix) + 1] += noise + _JITTER
    root = np.linalg.cholesky(matrix)
    return root, _TRTRI(root, lower=1)[0]


def loss(
    theta: Array, points: Array, values: Array, columns: Array, relations: Array | float = 1.0
) -> tuple[float, Array]:
    """Negative logarithm of the posterior of the parameters, and its gradient."""
    amplitude, noise = np.exp(theta[:2])
    scaled = points / np.exp(theta[2:])[columns]
    distances = _distances(scaled, scaled)
    kernel = matern52(distances)
    kernel *= relations
    try:
        root, inverse_root = _cholesky(amplitude * kernel, noise)
    except np.linalg.LinAlgError:
        return 1e10, np.zeros_like(theta)
    white = inverse_root @ values
    weights = inverse_root.T @ white
    mean, width = _hyperprior(len(theta) - 2)
    prior = (theta - mean) / width
    total = white @ white / 2 + np.log(root.diagonal()).sum() + prior @ prior / 2
    # Derivative by the covariance matrix.
    outer = (inverse_root.T @ inverse_root - weights[:, None] * weights) / 2
    by_square = amplitude * outer * _slopes(distances) * relations
    # The sum of element (a, b) times the squared difference of points a and b, by column.
    by_column = 2 * (by_square.sum(1) @ scaled**2 - (scaled * (by_square @ scaled)).sum(0))
    lengths = np.bincount(columns, by_column, len(theta) - 2)
    slope = np.array([amplitude * (outer * kernel).sum(), noise * outer.trace(), *lengths])
    return float(total), slope + prior / width


def fit(
    data: TrainingData,
    columns: Array,
    rng: np.random.Generator,
    num_drawn: int = _NUM_DRAWN,
    memo: dict[bytes, Any] | None = None,
) -> Array:
    """Fits the parameters by maximum a posteriori (L-BFGS-B, with few trials from several starts).

    Args:
        data: values should have mean 0 and variance 1.
        columns: feature of each column [columns].
        rng: draws the starting points besides the mean of the prior.
        num_drawn: the number of these points.
        memo: keeps the end of the way from the mean of the prior, for the next fit to the same
            completed trials. Trials that are suggested together differ in the running ones alone.

    Returns:
        Logarithms of amplitude, noise variance and length scales [2 + features].
    """
    num_features = int(columns.max()) + 1
    mean, width = _hyperprior(num_features)
    # With many trials the fit is slow, and all starting points lead to the same parameters.
    num_drawn = num_drawn if len(data.values) <= _MANY else 0
    starts = mean + rng.normal(size=(num_drawn, len(mean))) * width
    ends = [tuple(map(math.log, each)) for each in (_AMPLITUDE, _NOISE, *[_LENGTH] * num_features)]
    low, high = np.array(ends).T
    points, values = data.points[data.is_observed], data.values[data.is_observed]
    relations = data.relations(data.is_observed)

    def optimized(start: Array) -> Any:
        return scipy.optimize.minimize(
            loss,
            np.clip(start, low, high),
            args=(points, values, columns, relations),
            jac=True,
            method='L-BFGS-B',
            bounds=ends,
            options={'maxiter': 60},
        )

    memo, key = {} if memo is None else memo, _key(points, values, np.asarray(relations))
    if key not in memo:
        memo.clear()
        memo[key] = optimized(mean)
    found = [memo[key], *map(optimized, starts)]
    return np.asarray(min(found, key=lambda each: each.fun).x)


def _key(*arrays: Array) -> bytes:
    digest = hashlib.sha256()
    for each in arrays:
        digest.update(repr(each.shape).encode() + each.tobytes())
    return digest.digest()


def noise_distance(theta: Array) -> float:
    """Distance at which the process differs by the variance of the noise, in length scales.

    Near a point, its difference has a variance of 5/3 of its amplitude times the squared distance.
    Where noise is as large as the process, the distance is too short by a quarter.

    Args:
        theta: parameters [2 + features].

    Returns:
        The distance; infinite where the process differs by less at any distance.

    Example:
        >>> round(noise_distance(np.log([1.0, 0.01, 0.5])), 3)
        0.077
    """
    ratio = math.exp(theta[1] - theta[0])
    return math.sqrt(0.6 * ratio) if ratio < 2.0 else math.inf


def posterior(theta: Array, data: TrainingData, columns: Array) -> Posterior:
    """Conditions the process on data, given parameters [2 + features]."""
    amplitude, noise = np.exp(theta[:2])
    lengths = np.exp(theta[2:])[columns]
    scaled = data.points / lengths
    kernel = matern52(_distances(scaled, scaled))
    kernel *= data.relations(np.ones(len(scaled), bool))
    known, labeled = data.is_observed, data.is_observed | data.is_infeasible
    weights, feasibility = np.zeros((2, len(scaled)))
    _, inverse = _cholesky(amplitude * kernel[np.ix_(known, known)], noise)
    weights[known] = inverse.T @ (inverse @ data.values[known])
    _, inverse = _cholesky(kernel[np.ix_(labeled, labeled)], _LABEL_NOISE)
    feasibility[labeled] = inverse.T @ (inverse @ np.where(data.is_infeasible, -2.0, 0.0)[labeled])
    conditioned = data.is_observed_or_pending
    _, inverse = _cholesky(amplitude * kernel[np.ix_(conditioned, conditioned)], noise)
    inverse_cholesky = np.zeros((len(inverse), len(scaled)))
    inverse_cholesky[:, conditioned] = inverse
    if data.loadings is not None:  # A point to predict is of this study.
        weights, feasibility = weights * data.loadings, feasibility * data.loadings
        inverse_cholesky *= data.loadings
    return Posterior(scaled, lengths, amplitude, noise, weights, inverse_cholesky, feasibility)


def leave_one_out(theta: Array, data: TrainingData, columns: Array) -> tuple[Array, Array]:
    """Predicts each completed trial from the others, given parameters [2 + features].

    Returns:
        The errors of the means, and the standard deviations of the predictions, with noise: each
        [completed trials].
    """
    amplitude, noise = np.exp(theta[:2])
    points = data.points[data.is_observed] / np.exp(theta[2:])[columns]
    kernel = matern52(_distances(points, points)) * data.relations(data.is_observed)
    _, inverse = _cholesky(amplitude * kernel, noise)
    precision = np.sum(inverse**2, axis=0)
    weights = inverse.T @ (inverse @ data.values[data.is_observed])
    return weights / precision, precision**-0.5


def predict(posterior: Posterior, points: Array) -> Prediction:
    """Predicts points [B, columns]."""
    scaled = points / posterior.lengths
    distances = _distances(scaled, posterior.points)
    kernel = matern52(distances)
    factors = [posterior.inverse_cholesky.T, posterior.weights, posterior.feasibility_weights]
    products = kernel @ np.column_stack(factors)
    projected, mean = posterior.amplitude * products[:, :-2], posterior.amplitude * products[:, -2]
    variance = np.maximum(posterior.amplitude - np.sum(projected**2, axis=1), 1e-12)
    # Regression of labels 1 and -1 with prior mean 1. The threshold is 0.5 instead of 0, because
    # gradient ascent would otherwise follow the border of the infeasible region.
    margin = (1.0 + products[:, -1] - _LABEL_THRESHOLD) / _LABEL_WIDTH
    feasible = scipy.special.log_ndtr(margin)
    return Prediction(mean, np.sqrt(variance), feasible, margin, scaled, distances, projected)


def gradient(
    posterior: Posterior, at: Prediction, by_mean: Array, by_deviation: Array, by_feasible: Array
) -> Array:
    """Gradient of a function of predictions, with respect to the points [B, columns].

    `by_…` are the derivatives of the function [B] by the fields of the prediction.
    """
    log_density = -(at.margin**2) / 2 - math.log(2 * math.pi) / 2
    by_label = by_feasible * np.exp(log_density - at.feasible) / _LABEL_WIDTH
    by_projected = -(by_deviation / at.deviation)[:, None] * at.projected
    by_kernel = posterior.amplitude * (
        np.outer(by_mean, posterior.weights) + by_projected @ posterior.inverse_cholesky
    ) + np.outer(by_label, posterior.feasibility_weights)
    pulled = by_kernel * _slopes(at.distances)
    away = pulled.sum(1)[:, None] * at.points - pulled @ posterior.points
    return -away / posterior.lengths
