"""Caches of earlier positions, of whole rows or of the last `window` positions.

A cache of a window is a ring: position p is entry p % window. Padding after a prompt is not
written there, since it would replace positions that the next tokens see.
"""

import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.positions import Positions


def update_cache(
    layer: Layer,
    name: str,
    new: jax.Array,
    positions: Positions,
    axes: tuple[str, ...],
    window: int | None = None,
) -> jax.Array:
    """Adds new positions to a cache: [B, T, ...] -> entries that they may see, [B, S, ...].

    `cached_index` has the positions of these entries. Those later than the current position of a
    row are invalid.

    Args:
        axes: the logical axes of `new`.
        window: number of positions that a token sees, itself included; None for all.
    """
    examples, length, *rest = new.shape
    size = _size(layer, window)
    cache = layer.cached(name, (examples, size, *rest), new.dtype)
    is_ring = size == window
    if is_ring and length > 1:
        entries = jnp.concatenate([cache, new], axis=1)
        cache = _with_last_tokens(cache, new, positions)
    else:
        rows_B1 = jnp.arange(examples)[:, None]
        at_BT = positions.index_BT % size if is_ring else positions.index_BT
        entries = cache = cache.at[rows_B1, at_BT].set(new)
    layer.set_cached(name, cache)
    return layer.constrain(entries, axes)


def cached_index(layer: Layer, positions: Positions, window: int | None = None) -> jax.Array:
    """The position of each entry of `update_cache`: [1 or B, S], negative where there is none."""
    size, index_BT = _size(layer, window), positions.index_BT
    if size != window:
        return jnp.arange(size)[None]
    if index_BT.shape[1] == 1:
        return in_ring(index_BT, size)
    return jnp.concatenate([in_ring(index_BT[:, :1] - 1, size), index_BT], axis=1)


def visible_entries(
    positions: Positions, index_BS: jax.Array, window: int | None = None
) -> jax.Array:
    """True where an entry of a cache is visible: [B, T, S].

    These are the past, within the window if there is one, and the prefix.
    """
    back_BTS = positions.index_BT[:, :, None] - index_BS[:, None]
    visible_BTS = (back_BTS >= 0) & (index_BS >= 0)[:, None]
    if window is not None:
        visible_BTS &= back_BTS < window
    if positions.prefix_BT is not None:
        lengths_B = jnp.sum(positions.prefix_BT, axis=1)
        visible_BTS |= (index_BS < lengths_B[:, None])[:, None]
    return visible_BTS


def in_ring(last_B1: jax.Array, size: int) -> jax.Array:
    """The position of each entry of a ring, [B, size], whose last position is `last_B1`.

    Example:
        >>> in_ring(jnp.array([[-1], [0], [4]]), 3).tolist()
        [[-3, -2, -1], [0, -2, -1], [3, 4, 2]]
    """
    return last_B1 - (last_B1 - jnp.arange(size)) % size


def _with_last_tokens(ring: jax.Array, new: jax.Array, positions: Positions) -> jax.Array:
    """The ring after the new tokens of each row."""
    first_B1 = positions.index_BT[:, :1]
    last_B1 = first_B1 + jnp.sum(positions.is_token_BT, axis=1, keepdims=True) - 1
    column_BW = in_ring(last_B1, ring.shape[1]) - first_B1
    over = column_BW.reshape(*column_BW.shape, *[1] * (new.ndim - 2))
    taken = jnp.take_along_axis(new, jnp.clip(over, 0), axis=1)
    return jnp.where(over >= 0, taken, ring)


def _size(layer: Layer, window: int | None) -> int:
    assert layer.cache_length is not None
    return layer.cache_length if window is None else min(window, layer.cache_length)
