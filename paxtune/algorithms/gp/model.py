"""Gaussian process: likelihood, fit and predictions.

All arrays are padded to a few sizes, so that few programs are compiled as trials come in. Padding
does not affect results.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

Array: TypeAlias = jax.Array | np.ndarray

_JITTER = 1e-8
_MANY = 256  # Trials.
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
    """Padded observations.

    Attributes:
        points: encoded decisions [N, columns].
        values: warped scores [N]; 0 where there is none.
        is_observed: mask of completed trials [N].
        is_observed_or_pending: mask of completed and running trials [N].
        is_infeasible: mask of infeasible trials [N].
    """

    points: Array
    values: Array
    is_observed: Array
    is_observed_or_pending: Array
    is_infeasible: Array


class Posterior(NamedTuple):
    """Factors of the posterior distribution.

    Attributes:
        points: points [N, columns], divided by the length scales.
        lengths: length scales [columns].
        amplitude: prior variance.
        weights: of the completed trials, for the mean [N].
        inverse_cholesky: of the completed and running trials, for the variance [N, N].
        feasibility_weights: of the completed and infeasible trials [N].
    """

    points: jax.Array
    lengths: jax.Array
    amplitude: jax.Array
    weights: jax.Array
    inverse_cholesky: jax.Array
    feasibility_weights: jax.Array


def matern52(ones: Array, others: Array) -> jax.Array:
    """Matérn-5/2 kernel matrix of points [A, columns] and [B, columns]: [A, B]."""
    squares = (
        jnp.sum(ones**2, axis=1)[:, None]
        + jnp.sum(others**2, axis=1)[None, :]
        - 2.0 * ones @ others.T
    )
    # The gradient of the root is infinite at 0, and rounding may lead below 0.
    scaled = jnp.sqrt(5.0 * jnp.maximum(squares, 1e-15))
    return (1.0 + scaled + scaled**2 / 3.0) * jnp.exp(-scaled)


def _covariance(
    theta: Array, points: Array, columns: np.ndarray
) -> tuple[jax.Array, jax.Array, jax.Array]:
    amplitude, noise = jnp.exp(theta[0]), jnp.exp(theta[1])
    scaled = jnp.asarray(points / jnp.exp(theta[2:])[columns])
    return amplitude * matern52(scaled, scaled), noise, scaled


def _masked(matrix: jax.Array, mask: Array, noise: jax.Array) -> jax.Array:
    """Kernel matrix of the points in a mask; the others have unit variance and no covariance."""
    both = mask[:, None] & mask[None, :]
    diagonal = jnp.where(mask, noise + _JITTER, 1.0)
    return jnp.where(both, matrix, 0.0) + jnp.diag(diagonal)


def _hyperprior(num_features: int) -> tuple[np.ndarray, np.ndarray]:
    both = np.array([_LOG_AMPLITUDE, _LOG_NOISE, *[_LOG_LENGTH] * num_features])
    return both[:, 0], both[:, 1]


def _negative_log_prior(theta: jax.Array) -> jax.Array:
    mean, width = _hyperprior(theta.shape[0] - 2)
    return jnp.sum(((theta - mean) / width) ** 2) / 2


@functools.lru_cache(maxsize=32)
def _negative_log_posterior(columns: tuple[int, ...]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    which = np.array(columns)

    def loss(theta: jax.Array, data: TrainingData) -> jax.Array:
        matrix, noise, _ = _covariance(theta, data.points, which)
        root = jnp.linalg.cholesky(_masked(matrix, data.is_observed, noise))
        white = jax.scipy.linalg.solve_triangular(root, data.values, lower=True)
        return jnp.sum(white**2) / 2 + jnp.sum(jnp.log(jnp.diag(root))) + _negative_log_prior(theta)

    return jax.jit(jax.value_and_grad(loss))


def fit(data: TrainingData, columns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Fits the parameters by maximum a posteriori (L-BFGS-B with restarts).

    Args:
        data: values should have mean 0 and variance 1.
        columns: feature of each column [columns].
        rng: draws the starting points besides the mean of the prior.

    Returns:
        Logarithms of amplitude, noise variance and length scales [2 + features].
    """
    data = jax.device_put(data)  # Once, not with each of a hundred calls.
    num_features = int(columns.max()) + 1
    compiled = _negative_log_posterior(tuple(columns.tolist()))

    def value(theta: np.ndarray) -> tuple[float, np.ndarray]:
        loss, slope = compiled(theta, data)
        if not np.isfinite(loss):
            return 1e10, np.zeros_like(theta)
        return float(loss), np.asarray(slope, np.float64)

    mean, width = _hyperprior(num_features)
    # With many trials the fit is slow, and hardly depends on the starting point.
    num_drawn = 3 if len(data.values) < _MANY else 1
    starts = [mean, *mean + rng.normal(size=(num_drawn, len(mean))) * width]
    ends = [tuple(map(math.log, each)) for each in (_AMPLITUDE, _NOISE, *[_LENGTH] * num_features)]
    low, high = np.array(ends).T
    found = [
        scipy.optimize.minimize(
            value,
            np.clip(start, low, high),
            jac=True,
            method='L-BFGS-B',
            bounds=ends,
            options={'maxiter': 60},
        )
        for start in starts
    ]
    return np.asarray(min(found, key=lambda each: each.fun).x)


@functools.lru_cache(maxsize=32)
def _posterior(columns: tuple[int, ...]) -> Callable[..., Posterior]:
    which = np.array(columns)

    def posterior(theta: jax.Array, data: TrainingData) -> Posterior:
        matrix, noise, scaled = _covariance(theta, data.points, which)
        root = jnp.linalg.cholesky(_masked(matrix, data.is_observed, noise))
        weights = jax.scipy.linalg.cho_solve((root, True), data.values)
        conditioned = jnp.linalg.cholesky(_masked(matrix, data.is_observed_or_pending, noise))
        eye = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
        inverse_cholesky = jax.scipy.linalg.solve_triangular(conditioned, eye, lower=True)
        inverse_cholesky = jnp.where(data.is_observed_or_pending[None, :], inverse_cholesky, 0.0)
        amplitude = jnp.exp(theta[0])
        labeled = data.is_observed | data.is_infeasible
        feasibility = jnp.linalg.cholesky(
            _masked(matrix / amplitude, labeled, jnp.array(_LABEL_NOISE))
        )
        residual = jnp.where(data.is_infeasible, -2.0, 0.0)
        return Posterior(
            scaled,
            jnp.exp(theta[2:])[which],
            amplitude,
            jnp.where(data.is_observed, weights, 0.0),
            inverse_cholesky,
            jnp.where(labeled, jax.scipy.linalg.cho_solve((feasibility, True), residual), 0.0),
        )

    return jax.jit(posterior)


def posterior(theta: np.ndarray, data: TrainingData, columns: np.ndarray) -> Posterior:
    """Conditions the process on data, given parameters [2 + features]."""
    return _posterior(tuple(columns.tolist()))(theta, data)


def predict(posterior: Posterior, points: Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Predicts points [B, columns].

    Returns:
        The mean [B]; the standard deviation [B], which running trials lower, too; the logarithm of
        the probability of feasibility [B].
    """
    covariance = matern52(points / posterior.lengths, posterior.points)
    mean = posterior.amplitude * covariance @ posterior.weights
    explained = jnp.sum(
        (posterior.amplitude * covariance @ posterior.inverse_cholesky.T) ** 2, axis=1
    )
    variance = jnp.maximum(posterior.amplitude - explained, 1e-12)
    # Regression of labels 1 and -1 with prior mean 1. The threshold is 0.5 instead of 0, because
    # gradient ascent would otherwise follow the border of the infeasible region.
    label = 1.0 + covariance @ posterior.feasibility_weights
    feasible = jax.scipy.stats.norm.logcdf((label - _LABEL_THRESHOLD) / _LABEL_WIDTH)
    return mean, jnp.sqrt(variance), feasible


@jax.jit
def mean(posterior: Posterior, points: Array) -> jax.Array:
    """Posterior mean of points [B, columns]: [B]."""
    return predict(posterior, points)[0]
