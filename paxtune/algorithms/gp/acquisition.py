"""Where to look next: what a point promises."""

import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats

from paxtune.algorithms.gp.encoding import Box, embedding
from paxtune.algorithms.gp.model import Array, Posterior, predict

Kind = Literal['log_ei', 'ucb', 'pe']

# As in Vizier's GP_UCB_PE: how many standard deviations a point may be better than is expected, how
# many make it worth exploring, and what it costs where even these are not enough.
_UCB, _REGION, _SHORTFALL = 1.8, 0.5, 10.0
_INFEASIBLE = 3.0  # Standard deviations of all scores.
_OUTSIDE = 1e4  # Each share beyond the region that is searched: there is a way back.


class Wish(NamedTuple):
    """What is looked for, besides what the model says.

    Attributes:
        best: what is to be improved upon.
        prior: where good decisions are believed to lie: a row [features].
        prior_weight: [features], how strongly; 0 where nothing is believed.
        center: the middle of the region that is searched: a row [features].
        reach: how far it reaches to each side [features]; 1 for the whole range.
    """

    best: Array
    prior: Array
    prior_weight: Array
    center: Array
    reach: Array


def log_expected_improvement(mean: Array, deviation: Array, best: Array | float) -> jax.Array:
    """The logarithm of the expected improvement, exact also where that is tiny.

    See Ament et al. 2023 (arXiv 2310.20708).

    Args:
        mean: [B].
        deviation: standard deviations [B].
        best: what is to be improved upon.
    """
    z = (mean - best) / deviation
    near = jnp.log(jnp.maximum(stats.norm.pdf(z) + z * stats.norm.cdf(z), 1e-300))
    # φ(z) + z Φ(z) by its asymptotic series, where the sum loses all of its digits.
    far_z = jnp.minimum(z, -5.0)
    log_density = -(far_z**2) / 2 - math.log(2 * math.pi) / 2
    far = log_density - 2 * jnp.log(-far_z) + jnp.log1p(-3 / far_z**2)
    return jnp.log(deviation) + jnp.where(z > -5.0, near, far)


def promise(
    kind: Kind, box: Box, posterior: Posterior, wish: Wish, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What rows [B, features] promise, and the rows, each share in the middle of its cell."""
    rows, points = embedding(box)(rows)
    mean, deviation, feasible = predict(posterior, points)
    away = rows - wish.prior
    # A category is another one or the same, whatever stands between them.
    away = jnp.where(np.array(box.are_categories), jnp.where(jnp.abs(away) > 1e-6, 0.5, 0.0), away)
    belief = -jnp.sum(wish.prior_weight * away**2, axis=1)
    if kind == 'log_ei':
        merit = log_expected_improvement(mean, deviation, wish.best) + feasible
    elif kind == 'ucb':
        merit = mean + _UCB * deviation - _INFEASIBLE * (1.0 - jnp.exp(feasible))
    else:
        short = jnp.maximum(wish.best - (mean + _REGION * deviation), 0.0)
        merit = deviation - _SHORTFALL * short - _INFEASIBLE * (1.0 - jnp.exp(feasible))
    outside = jnp.maximum(jnp.abs(rows - wish.center) - wish.reach, 0.0)
    return merit + belief - _OUTSIDE * jnp.sum(outside, axis=1), rows


@functools.lru_cache(maxsize=32)
def promises(kind: Kind, box: Box) -> Callable[[Posterior, Wish, Array], jax.Array]:
    """The compiled function of what rows [B, features] promise: [B]."""
    return jax.jit(lambda posterior, wish, rows: promise(kind, box, posterior, wish, rows)[0])
