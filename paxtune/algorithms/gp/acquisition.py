"""Where to look next: how good a point may be, and the search for the best of a box."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats

from paxtune.algorithms.gp.box import Box, embedding
from paxtune.algorithms.gp.model import Array, Posterior, predict

Kind = Literal['log_ei', 'ucb', 'pe']


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


@dataclasses.dataclass(frozen=True)
class Effort:
    """How many points are looked at.

    The sum is that of Vizier's optimizer, 75,000; a step up a slope counts as three.
    """

    num_drawn: int = 16384
    generations: int = 48
    num_children: int = 1024
    num_elite: int = 256
    num_climbers: int = 64
    num_steps: int = 50


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
    far = (
        -(far_z**2) / 2 - math.log(2 * math.pi) / 2 - 2 * jnp.log(-far_z) + jnp.log1p(-3 / far_z**2)
    )
    return jnp.log(deviation) + jnp.where(z > -5.0, near, far)


@functools.lru_cache(maxsize=32)
def merit(kind: Kind, box: Box) -> Callable[[Posterior, Wish, Array], jax.Array]:
    """The compiled function of what rows [B, features] promise: [B]."""
    return jax.jit(lambda posterior, wish, rows: merits(kind, box, posterior, wish, rows)[0])


def merits(
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
        merit = mean + 1.8 * deviation - 3.0 * (1.0 - jnp.exp(feasible))
    else:
        short = jnp.maximum(wish.best - (mean + 0.5 * deviation), 0.0)
        merit = deviation - 10.0 * short - 3.0 * (1.0 - jnp.exp(feasible))
    outside = jnp.maximum(jnp.abs(rows - wish.center) - wish.reach, 0.0)
    return merit + belief - 1e4 * jnp.sum(outside, axis=1), rows


@functools.lru_cache(maxsize=64)
def optimizer(kind: Kind, box: Box, effort: Effort) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """What looks for the rows of a box that promise most.

    Points are drawn, the best of them are crossed and changed for some generations, and the best of
    those climb the slope of what they promise.

    Returns:
        A compiled function of (key, posterior, wish, known). `known` [K, features] are rows to
        begin with. It returns rows [num_elite, features], the most promising first, and what they
        promise.
    """
    num_features = len(box.counts)
    moves = jnp.array(box.are_moved_by_slopes)

    def score(posterior: Posterior, wish: Wish, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        return merits(kind, box, posterior, wish, rows)

    def draw(key: jax.Array, known: jax.Array) -> jax.Array:
        everywhere, around = jax.random.split(key)
        half = effort.num_drawn // 2
        drawn = jax.random.uniform(everywhere, (half, num_features), dtype=known.dtype)
        parents = known[jnp.arange(effort.num_drawn - half) % known.shape[0]]
        return jnp.concatenate([drawn, mutate(around, parents, parents)])

    def mutate(key: jax.Array, rows: jax.Array, others: jax.Array) -> jax.Array:
        keys = jax.random.split(key, 7)
        shape, each = rows.shape, (rows.shape[0], 1)
        dtype = rows.dtype
        from_other = 0.2 * jax.random.uniform(keys[0], each)
        rows = jnp.where(jax.random.uniform(keys[1], shape) < from_other, others, rows)
        # From one or two shares to all of them; from a step that is hardly one to half the range.
        share = 2.0 ** jax.random.uniform(keys[2], each, maxval=6) / num_features
        is_changed = jax.random.uniform(keys[3], shape) < share
        width = 10.0 ** jax.random.uniform(keys[4], each, dtype=dtype, minval=-3.5, maxval=-0.3)
        near = jnp.abs(rows + width * jax.random.normal(keys[5], shape, dtype=dtype))
        near = jnp.clip(jnp.where(near > 1, 2 - near, near), 0.0, 1.0)
        anew = jax.random.uniform(keys[6], shape, dtype=dtype)
        changed = jnp.where(jnp.array(box.are_categories), anew, near)
        return jnp.where(is_changed, changed, rows)

    def best(rows: jax.Array, scores: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        found, where = jax.lax.top_k(scores, count)
        return rows[where], found

    def generation(posterior, wish, carry, key):  # type: ignore[no-untyped-def]
        rows, scores = carry
        pick, other, change = jax.random.split(key, 3)
        # The better, the more children.
        shares = jax.random.uniform(pick, (effort.num_children,)) ** 2
        parents = rows[(shares * effort.num_elite).astype(jnp.int32)]
        others = rows[jax.random.randint(other, (effort.num_children,), 0, effort.num_elite)]
        children = mutate(change, parents, others)
        merit, children = score(posterior, wish, children)
        both = jnp.concatenate([rows, children]), jnp.concatenate([scores, merit])
        return best(*both, effort.num_elite), None

    def climb(posterior: Posterior, wish: Wish, rows: jax.Array) -> jax.Array:
        slope = jax.grad(lambda x: jnp.sum(score(posterior, wish, x)[0]))

        def step(carry, i):  # type: ignore[no-untyped-def]
            x, first, second = carry
            g = jnp.where(moves, jnp.nan_to_num(slope(x)), 0.0)
            first = 0.8 * first + 0.2 * g
            second = 0.95 * second + 0.05 * g**2
            rate = 0.03 * (1 - i / effort.num_steps) ** 2
            unbiased = first / (1 - 0.8 ** (i + 1))
            scale = jnp.sqrt(second / (1 - 0.95 ** (i + 1))) + 1e-12
            return (jnp.clip(x + rate * unbiased / scale, 0.0, 1.0), first, second), None

        start = rows, jnp.zeros_like(rows), jnp.zeros_like(rows)
        return jax.lax.scan(step, start, jnp.arange(effort.num_steps, dtype=rows.dtype))[0][0]

    def search(
        key: jax.Array, posterior: Posterior, wish: Wish, known: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        first, later = jax.random.split(key)
        blocks = draw(first, known).reshape(-1, effort.num_children, num_features)
        merit, rows = jax.lax.map(lambda block: score(posterior, wish, block), blocks)
        carry = best(rows.reshape(-1, num_features), merit.reshape(-1), effort.num_elite)
        keys = jax.random.split(later, effort.generations)
        (rows, scores), _ = jax.lax.scan(
            functools.partial(generation, posterior, wish), carry, keys
        )
        climbed = climb(posterior, wish, rows[: effort.num_climbers])
        merit, climbed = score(posterior, wish, climbed)
        return best(
            jnp.concatenate([rows, climbed]), jnp.concatenate([scores, merit]), effort.num_elite
        )

    return jax.jit(search)
