import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from paxtune.algorithms.gp.acquisition import AcquisitionContext, Kind, acquisition_value
from paxtune.algorithms.gp.encoding import EncodingSpec
from paxtune.algorithms.gp.model import Array, Posterior

# Numbers of evaluations: 75,000 in all, as in Vizier's optimizer. A gradient step counts as three.
_NUM_DRAWN = 16384
_GENERATIONS = 48
_NUM_CHILDREN = 1024
_NUM_ELITE = 256
_NUM_ASCENTS = 64
_NUM_STEPS = 50

Scored: TypeAlias = tuple[jax.Array, jax.Array]
"""Rows [B, features], each unit value in the middle of its cell, and their values [B]."""

_AdamState: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]
"""Rows, and moments of their gradients."""

Score: TypeAlias = Callable[[jax.Array], Scored]


@functools.lru_cache(maxsize=64)
def compiled_optimizer(
    kind: Kind, encoding: EncodingSpec
) -> Callable[[jax.Array, Posterior, AcquisitionContext, Array], tuple[jax.Array, jax.Array]]:
    """Compiled function that maximizes an acquisition function.

    It draws rows, evolves the best ones for some generations, and refines the best of these by
    gradient ascent.

    Returns:
        A function of a random key, the posterior, the context, and known rows [K, features]. It
        returns rows [256, features], best first, and their acquisition values [256].
    """

    def search(
        key: jax.Array, posterior: Posterior, context: AcquisitionContext, known: Array
    ) -> Scored:
        score = functools.partial(acquisition_value, kind, encoding, posterior, context)
        first, later = jax.random.split(key)
        drawn = _draw_candidates(first, encoding, jnp.asarray(known))
        found = jax.lax.map(score, drawn.reshape(-1, _NUM_CHILDREN, drawn.shape[1]))
        elite = _top(found[0].reshape(drawn.shape), found[1].reshape(-1))
        elite = _evolve(later, encoding, score, elite)
        refined = _gradient_ascent(encoding, score, elite[0][:_NUM_ASCENTS])
        return _top(*_concatenate(elite, refined))

    return jax.jit(search)


def _draw_candidates(key: jax.Array, encoding: EncodingSpec, known: jax.Array) -> jax.Array:
    """Draws half of the rows uniformly, half around the known rows."""
    everywhere, around = jax.random.split(key)
    half = _NUM_DRAWN // 2
    anywhere = jax.random.uniform(everywhere, (half, known.shape[1]), dtype=known.dtype)
    parents = known[jnp.arange(_NUM_DRAWN - half) % known.shape[0]]
    return jnp.concatenate([anywhere, _perturb(around, encoding, parents, parents)])


def _perturb(
    key: jax.Array, encoding: EncodingSpec, rows: jax.Array, others: jax.Array
) -> jax.Array:
    """Perturbs rows: takes some values from others, changes some by a small or large step."""
    keys = jax.random.split(key, 7)
    shape, each, dtype = rows.shape, (rows.shape[0], 1), rows.dtype
    from_other = 0.2 * jax.random.uniform(keys[0], each)
    rows = jnp.where(jax.random.uniform(keys[1], shape) < from_other, others, rows)
    # From one or two features to all of them; from a tiny step to half the range.
    rate = 2.0 ** jax.random.uniform(keys[2], each, maxval=6) / shape[1]
    is_changed = jax.random.uniform(keys[3], shape) < rate
    width = 10.0 ** jax.random.uniform(keys[4], each, dtype=dtype, minval=-3.5, maxval=-0.3)
    near = jnp.abs(rows + width * jax.random.normal(keys[5], shape, dtype=dtype))
    near = jnp.clip(jnp.where(near > 1, 2 - near, near), 0.0, 1.0)
    anew = jax.random.uniform(keys[6], shape, dtype=dtype)
    return jnp.where(is_changed, jnp.where(np.array(encoding.are_categorical), anew, near), rows)


def _evolve(key: jax.Array, encoding: EncodingSpec, score: Score, elite: Scored) -> Scored:
    """Runs some generations; better rows have more children."""

    def generation(elite: Scored, key: jax.Array) -> tuple[Scored, None]:
        pick, other, change = jax.random.split(key, 3)
        ranks = _NUM_ELITE * jax.random.uniform(pick, (_NUM_CHILDREN,)) ** 2
        parents = elite[0][ranks.astype(jnp.int32)]
        others = elite[0][jax.random.randint(other, (_NUM_CHILDREN,), 0, _NUM_ELITE)]
        children = score(_perturb(change, encoding, parents, others))
        return _top(*_concatenate(elite, children)), None

    return jax.lax.scan(generation, elite, jax.random.split(key, _GENERATIONS))[0]


def _gradient_ascent(encoding: EncodingSpec, score: Score, rows: jax.Array) -> Scored:
    """Runs Adam with step sizes that decay to 0."""
    gradient = jax.grad(lambda rows: jnp.sum(score(rows)[1]))
    is_number = np.array(encoding.counts) == 0

    def step(carry: _AdamState, i: jax.Array) -> tuple[_AdamState, None]:
        rows, first, second = carry
        ascent = jnp.where(is_number, jnp.nan_to_num(gradient(rows)), 0.0)
        first, second = 0.8 * first + 0.2 * ascent, 0.95 * second + 0.05 * ascent**2
        scale = jnp.sqrt(second / (1 - 0.95 ** (i + 1))) + 1e-12
        move = first / (1 - 0.8 ** (i + 1)) / scale
        rows = jnp.clip(rows + 0.03 * (1 - i / _NUM_STEPS) ** 2 * move, 0.0, 1.0)
        return (rows, first, second), None

    begin = rows, jnp.zeros_like(rows), jnp.zeros_like(rows)
    steps = jnp.arange(_NUM_STEPS, dtype=rows.dtype)
    return score(jax.lax.scan(step, begin, steps)[0][0])


def _concatenate(ones: Scored, others: Scored) -> Scored:
    return jnp.concatenate([ones[0], others[0]]), jnp.concatenate([ones[1], others[1]])


def _top(rows: jax.Array, values: jax.Array) -> Scored:
    values, where = jax.lax.top_k(values, _NUM_ELITE)
    return rows[where], values
