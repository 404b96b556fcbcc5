"""Acquisition functions."""

import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats

from paxtune.algorithms.gp.encoding import EncodingSpec, encoder
from paxtune.algorithms.gp.model import Array, Posterior, predict

Kind = Literal['log_ei', 'ucb', 'pe']

# Settings of Vizier's GP_UCB_PE. A point is worth exploring if the mean plus _EXPLORATION standard
# deviations reaches the incumbent; _SHORTFALL penalizes the difference.
_UCB, _EXPLORATION, _SHORTFALL = 1.8, 0.5, 10.0
_INFEASIBLE = 3.0  # Penalty in standard deviations of all scores.
_OUTSIDE = 1e4  # Penalty of each unit outside the trust region: its gradient leads back.


class AcquisitionContext(NamedTuple):
    """Inputs of an acquisition function besides the model.

    Attributes:
        incumbent: score to improve upon.
        prior: row of the user prior [features].
        prior_weight: strength of the user prior [features]; 0 where there is none.
        center: center of the trust region: a row [features].
        radius: half width of the trust region [features]; 1 for the whole range.
    """

    incumbent: Array
    prior: Array
    prior_weight: Array
    center: Array
    radius: Array


def log_expected_improvement(mean: Array, deviation: Array, incumbent: Array | float) -> jax.Array:
    """Logarithm of the expected improvement, accurate for tiny values too.

    Ament et al. 2023 (arXiv 2310.20708). The mean, the standard deviation and the result are [B].
    """
    z = (mean - incumbent) / deviation
    near = jnp.log(jnp.maximum(stats.norm.pdf(z) + z * stats.norm.cdf(z), 1e-300))
    # The asymptotic series of φ(z) + z Φ(z), where the sum loses all of its digits.
    far_z = jnp.minimum(z, -5.0)
    log_density = -(far_z**2) / 2 - math.log(2 * math.pi) / 2
    far = log_density - 2 * jnp.log(-far_z) + jnp.log1p(-3 / far_z**2)
    return jnp.log(deviation) + jnp.where(z > -5.0, near, far)


def acquisition_value(
    kind: Kind,
    encoding: EncodingSpec,
    posterior: Posterior,
    context: AcquisitionContext,
    rows: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Acquisition values of rows [B, features].

    Returns:
        The rows with each unit value in the middle of its cell, and the values [B].
    """
    rows, points = encoder(encoding)(rows)
    mean, deviation, feasible = predict(posterior, points)
    distance = rows - context.prior
    # Two categories are equal or different; the unit values between them have no meaning.
    distance = jnp.where(
        np.array(encoding.are_categorical), jnp.where(jnp.abs(distance) > 1e-6, 0.5, 0.0), distance
    )
    log_prior = -jnp.sum(context.prior_weight * distance**2, axis=1)
    if kind == 'log_ei':
        value = log_expected_improvement(mean, deviation, context.incumbent) + feasible
    elif kind == 'ucb':
        value = mean + _UCB * deviation - _INFEASIBLE * (1.0 - jnp.exp(feasible))
    else:
        short = jnp.maximum(context.incumbent - (mean + _EXPLORATION * deviation), 0.0)
        value = deviation - _SHORTFALL * short - _INFEASIBLE * (1.0 - jnp.exp(feasible))
    outside = jnp.maximum(jnp.abs(rows - context.center) - context.radius, 0.0)
    return rows, value + log_prior - _OUTSIDE * jnp.sum(outside, axis=1)


@functools.lru_cache(maxsize=32)
def compiled_acquisition(
    kind: Kind, encoding: EncodingSpec
) -> Callable[[Posterior, AcquisitionContext, Array], jax.Array]:
    """Compiled function from rows [B, features] to their acquisition values [B]."""
    return jax.jit(
        lambda posterior, context, rows: acquisition_value(
            kind, encoding, posterior, context, rows
        )[1]
    )
