"""Stochastic rounding of parameters that are stored in bfloat16."""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

_LOST_BITS = 16
"""Bits of a float32 that a bfloat16 lacks: the last ones."""


def applies(params: Any) -> bool:
    """True if a parameter is bfloat16."""
    return any(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(params))


def updated(params: Any, updates: Any, key: jax.Array) -> Any:
    """Adds updates, and rounds bfloat16 parameters up or down at random.

    A sum is rounded up with the probability of its place between its neighbours, so that updates
    below half a rounding unit count on average (Gupta et al. 2015). Sums that are not finite, and
    parameters of other dtypes, are as `optax.apply_updates` makes them.

    Args:
        key: of the step. The path of a parameter makes its own key of it.

    Example:
        >>> params = {'up': jnp.ones(1000, jnp.bfloat16)}
        >>> updates = {'up': jnp.full(1000, 2.0**-9)}  # A quarter of a rounding unit.
        >>> new = updated(params, updates, jax.random.key(0))['up']
        >>> sorted({*new.tolist()}), bool(abs(new.astype(jnp.float32).mean() - 1 - 2**-9) < 4e-4)
        ([1.0, 1.0078125], True)
    """
    added = flatten_dict(updates)
    return unflatten_dict(
        {path: _sum(x, added[path], _key_of(path, key)) for path, x in flatten_dict(params).items()}
    )


def _sum(param: jax.Array, update: jax.Array, key: jax.Array) -> jax.Array:
    exact = param.astype(jnp.float32) + update.astype(jnp.float32)
    if param.dtype != jnp.bfloat16:
        return (param + update).astype(param.dtype)
    bits = jax.lax.bitcast_convert_type(exact, jnp.uint32)
    noise = jax.random.bits(key, exact.shape, jnp.uint16).astype(jnp.uint32)
    high = ((bits + noise) >> _LOST_BITS).astype(jnp.uint16)
    rounded = jax.lax.bitcast_convert_type(high, jnp.bfloat16)
    return jnp.where(jnp.isfinite(exact), rounded, exact.astype(jnp.bfloat16))


def _key_of(path: tuple[str, ...], key: jax.Array) -> jax.Array:
    name = '.'.join((*path, 'stochastic_rounding'))
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
