"""The search for the points of a box that promise most."""

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from paxtune.algorithms.gp.acquisition import Kind, Wish, promise
from paxtune.algorithms.gp.encoding import Box
from paxtune.algorithms.gp.model import Array, Posterior

# How many points are looked at: in all those 75,000 of Vizier's optimizer, where a step up a slope
# counts as three.
_NUM_DRAWN = 16384
_GENERATIONS = 48
_NUM_CHILDREN = 1024
_NUM_ELITE = 256
_NUM_CLIMBERS = 64
_NUM_STEPS = 50

Scored: TypeAlias = tuple[jax.Array, jax.Array]
"""Rows [B, features], each share in the middle of its cell, and what they promise [B]."""

_Climb: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]  # Rows, and moments of their slopes.

Score: TypeAlias = Callable[[jax.Array], Scored]


@functools.lru_cache(maxsize=64)
def optimizer(
    kind: Kind, box: Box
) -> Callable[[jax.Array, Posterior, Wish, Array], tuple[jax.Array, jax.Array]]:
    """What looks for the rows of a box that promise most.

    Points are drawn, the best of them are crossed and changed for some generations, and the best of
    those climb the slope of what they promise.

    Returns:
        A compiled function of a key, what is believed, what is wished for, and rows [K, features]
        to begin with. It returns rows [256, features], the most promising first, and what they
        promise.
    """

    def search(key: jax.Array, posterior: Posterior, wish: Wish, known: Array) -> Scored:
        def score(rows: jax.Array) -> Scored:
            merit, rows = promise(kind, box, posterior, wish, rows)
            return rows, merit

        first, later = jax.random.split(key)
        drawn = _drawn(first, box, jnp.asarray(known))
        found = jax.lax.map(score, drawn.reshape(-1, _NUM_CHILDREN, drawn.shape[1]))
        elite = _best(found[0].reshape(drawn.shape), found[1].reshape(-1))
        elite = _evolved(later, box, score, elite)
        climbed = _climbed(box, score, elite[0][:_NUM_CLIMBERS])
        return _best(*_joined(elite, climbed))

    return jax.jit(search)


def _drawn(key: jax.Array, box: Box, known: jax.Array) -> jax.Array:
    """Half of the rows from everywhere, half around those that are known."""
    everywhere, around = jax.random.split(key)
    half = _NUM_DRAWN // 2
    anywhere = jax.random.uniform(everywhere, (half, known.shape[1]), dtype=known.dtype)
    parents = known[jnp.arange(_NUM_DRAWN - half) % known.shape[0]]
    return jnp.concatenate([anywhere, _mutated(around, box, parents, parents)])


def _mutated(key: jax.Array, box: Box, rows: jax.Array, others: jax.Array) -> jax.Array:
    """Rows with some of the shares of others, and some changed: numbers a little, or more."""
    keys = jax.random.split(key, 7)
    shape, each, dtype = rows.shape, (rows.shape[0], 1), rows.dtype
    from_other = 0.2 * jax.random.uniform(keys[0], each)
    rows = jnp.where(jax.random.uniform(keys[1], shape) < from_other, others, rows)
    # From one or two shares to all of them; from a step that is hardly one to half the range.
    share = 2.0 ** jax.random.uniform(keys[2], each, maxval=6) / shape[1]
    is_changed = jax.random.uniform(keys[3], shape) < share
    width = 10.0 ** jax.random.uniform(keys[4], each, dtype=dtype, minval=-3.5, maxval=-0.3)
    near = jnp.abs(rows + width * jax.random.normal(keys[5], shape, dtype=dtype))
    near = jnp.clip(jnp.where(near > 1, 2 - near, near), 0.0, 1.0)
    anew = jax.random.uniform(keys[6], shape, dtype=dtype)
    return jnp.where(is_changed, jnp.where(np.array(box.are_categories), anew, near), rows)


def _evolved(key: jax.Array, box: Box, score: Score, elite: Scored) -> Scored:
    """What some generations make of the best: the better a row is, the more children it has."""

    def generation(elite: Scored, key: jax.Array) -> tuple[Scored, None]:
        pick, other, change = jax.random.split(key, 3)
        ranks = _NUM_ELITE * jax.random.uniform(pick, (_NUM_CHILDREN,)) ** 2
        parents = elite[0][ranks.astype(jnp.int32)]
        others = elite[0][jax.random.randint(other, (_NUM_CHILDREN,), 0, _NUM_ELITE)]
        children = score(_mutated(change, box, parents, others))
        return _best(*_joined(elite, children)), None

    return jax.lax.scan(generation, elite, jax.random.split(key, _GENERATIONS))[0]


def _climbed(box: Box, score: Score, rows: jax.Array) -> Scored:
    """What rows become that go up the slope, by Adam with steps that end at 0."""
    slope = jax.grad(lambda rows: jnp.sum(score(rows)[1]))
    moves = np.array(box.are_moved_by_slopes)

    def step(carry: _Climb, i: jax.Array) -> tuple[_Climb, None]:
        rows, first, second = carry
        up = jnp.where(moves, jnp.nan_to_num(slope(rows)), 0.0)
        first, second = 0.8 * first + 0.2 * up, 0.95 * second + 0.05 * up**2
        scale = jnp.sqrt(second / (1 - 0.95 ** (i + 1))) + 1e-12
        move = first / (1 - 0.8 ** (i + 1)) / scale
        rows = jnp.clip(rows + 0.03 * (1 - i / _NUM_STEPS) ** 2 * move, 0.0, 1.0)
        return (rows, first, second), None

    begin = rows, jnp.zeros_like(rows), jnp.zeros_like(rows)
    steps = jnp.arange(_NUM_STEPS, dtype=rows.dtype)
    return score(jax.lax.scan(step, begin, steps)[0][0])


def _joined(ones: Scored, others: Scored) -> Scored:
    return jnp.concatenate([ones[0], others[0]]), jnp.concatenate([ones[1], others[1]])


def _best(rows: jax.Array, promised: jax.Array) -> Scored:
    promised, where = jax.lax.top_k(promised, _NUM_ELITE)
    return rows[where], promised
