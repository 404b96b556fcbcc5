"""A Gaussian process over points of a box: its likelihood, its fit and what it predicts.

All arrays are padded to a few sizes, so that few programs are compiled as trials come in; what is
padding has no effect on any result.
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
_MANY = 256
_LABEL_NOISE = 0.01
_LEAST_LABEL, _LABEL_WIDTH = 0.5, 0.2

# Mean and standard deviation of the logarithms, before anything is known. Lengths are about the
# whole range, also in large boxes, where few points are near each other then: what is far from all
# that was tried promises little, and a search with few trials stays near good ones.
_LOG_AMPLITUDE = (0.0, 1.0)
_LOG_NOISE = (-6.0, 2.0)
_LOG_LENGTH = (0.0, 1.0)
_NOISE = (1e-6, 1.0)
_AMPLITUDE = (5e-2, 20.0)
_LENGTH = (5e-3, 1e3)


class Observations(NamedTuple):
    """What is known, padded.

    Attributes:
        points: [N, columns].
        values: what was observed [N]; 0 where nothing was.
        has_value: [N], bool.
        is_there: [N], bool: also those that run, or turned out to be infeasible.
        is_infeasible: [N], bool.
    """

    points: Array
    values: Array
    has_value: Array
    is_there: Array
    is_infeasible: Array


class Posterior(NamedTuple):
    """What predictions are made of. The whitener is of all points, the weights of those observed.

    Attributes:
        points: [N, columns], divided by the lengths.
        lengths: [columns].
        amplitude: the variance where nothing is known.
        weights: [N].
        whitener: [N, N], the inverse of a Cholesky factor.
        feasibility_weights: [N].
    """

    points: jax.Array
    lengths: jax.Array
    amplitude: jax.Array
    weights: jax.Array
    whitener: jax.Array
    feasibility_weights: jax.Array


def correlations(ones: Array, others: Array) -> jax.Array:
    """Matérn-5/2 correlations of points [A, columns] and [B, columns]: [A, B]."""
    squares = (
        jnp.sum(ones**2, axis=1)[:, None]
        + jnp.sum(others**2, axis=1)[None, :]
        - 2.0 * ones @ others.T
    )
    # The root has no slope at 0, and rounding may lead below it.
    scaled = jnp.sqrt(5.0 * jnp.maximum(squares, 1e-15))
    return (1.0 + scaled + scaled**2 / 3.0) * jnp.exp(-scaled)


def _covariance(
    theta: Array, points: Array, columns: np.ndarray
) -> tuple[jax.Array, jax.Array, jax.Array]:
    amplitude, noise = jnp.exp(theta[0]), jnp.exp(theta[1])
    scaled = jnp.asarray(points / jnp.exp(theta[2:])[columns])
    return amplitude * correlations(scaled, scaled), noise, scaled


def _only(matrix: jax.Array, which: Array, noise: jax.Array) -> jax.Array:
    """The matrix of some points, with those of unit variance and no correlation for the others."""
    both = which[:, None] & which[None, :]
    diagonal = jnp.where(which, noise + _JITTER, 1.0)
    return jnp.where(both, matrix, 0.0) + jnp.diag(diagonal)


def _belief(num_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the parameters, before anything is known."""
    both = np.array([_LOG_AMPLITUDE, _LOG_NOISE, *[_LOG_LENGTH] * num_features])
    return both[:, 0], both[:, 1]


def _surprise(theta: jax.Array) -> jax.Array:
    """Minus the logarithm of the prior density of the parameters."""
    mean, width = _belief(theta.shape[0] - 2)
    return jnp.sum(((theta - mean) / width) ** 2) / 2


@functools.lru_cache(maxsize=32)
def _loss(columns: tuple[int, ...]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    which = np.array(columns)

    def loss(theta: jax.Array, observed: Observations) -> jax.Array:
        matrix, noise, _ = _covariance(theta, observed.points, which)
        root = jnp.linalg.cholesky(_only(matrix, observed.has_value, noise))
        white = jax.scipy.linalg.solve_triangular(root, observed.values, lower=True)
        return jnp.sum(white**2) / 2 + jnp.sum(jnp.log(jnp.diag(root))) + _surprise(theta)

    return jax.jit(jax.value_and_grad(loss))


def fit(observed: Observations, columns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The most probable parameters: logarithms of amplitude, noise and lengths [2 + features].

    Args:
        observed: values should have mean 0 and variance 1.
        columns: the feature of each column.
        rng: where the search for them begins, besides at the prior's mean.
    """
    num_features = int(columns.max()) + 1
    compiled = _loss(tuple(columns.tolist()))

    def value(theta: np.ndarray) -> tuple[float, np.ndarray]:
        loss, slope = compiled(theta, observed)
        if not np.isfinite(loss):
            return 1e10, np.zeros_like(theta)
        return float(loss), np.asarray(slope, np.float64)

    mean, width = _belief(num_features)
    # With many trials, which take their time, wherever one begins leads to the same.
    num_drawn = 3 if len(observed.values) < _MANY else 1
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

    def posterior(theta: jax.Array, observed: Observations) -> Posterior:
        matrix, noise, scaled = _covariance(theta, observed.points, which)
        root = jnp.linalg.cholesky(_only(matrix, observed.has_value, noise))
        weights = jax.scipy.linalg.cho_solve((root, True), observed.values)
        everywhere = jnp.linalg.cholesky(_only(matrix, observed.is_there, noise))
        eye = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
        whitener = jax.scipy.linalg.solve_triangular(everywhere, eye, lower=True)
        whitener = jnp.where(observed.is_there[None, :], whitener, 0.0)
        amplitude = jnp.exp(theta[0])
        ended = observed.has_value | observed.is_infeasible
        feasibility = jnp.linalg.cholesky(_only(matrix / amplitude, ended, jnp.array(_LABEL_NOISE)))
        refused = jnp.where(observed.is_infeasible, -2.0, 0.0)
        return Posterior(
            scaled,
            jnp.exp(theta[2:])[which],
            amplitude,
            jnp.where(observed.has_value, weights, 0.0),
            whitener,
            jnp.where(ended, jax.scipy.linalg.cho_solve((feasibility, True), refused), 0.0),
        )

    return jax.jit(posterior)


def posterior(theta: np.ndarray, observed: Observations, columns: np.ndarray) -> Posterior:
    """What is believed once values were observed."""
    return _posterior(tuple(columns.tolist()))(theta, observed)


def predict(posterior: Posterior, points: Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What is expected of points.

    Args:
        posterior: what is believed.
        points: [B, columns].

    Returns:
        The mean [B]; the standard deviation [B], which is smaller around trials that run, too; the
        logarithm of the probability that it is feasible [B].
    """
    like = correlations(points / posterior.lengths, posterior.points)
    mean = posterior.amplitude * like @ posterior.weights
    explained = jnp.sum((posterior.amplitude * like @ posterior.whitener.T) ** 2, axis=1)
    variance = jnp.maximum(posterior.amplitude - explained, 1e-12)
    # Labels of 1 and -1, regressed; 1 where nothing is known. Half way to one of -1 is too far: a
    # search that follows a slope would go on and on along the border.
    label = 1.0 + like @ posterior.feasibility_weights
    feasible = jax.scipy.stats.norm.logcdf((label - _LEAST_LABEL) / _LABEL_WIDTH)
    return mean, jnp.sqrt(variance), feasible


@jax.jit
def mean(posterior: Posterior, points: Array) -> jax.Array:
    """What is expected of points [B, columns]: [B]."""
    return predict(posterior, points)[0]
