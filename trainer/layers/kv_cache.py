import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.local import within_window
from trainer.layers.positions import Positions


def update_cache(
    layer: Layer, name: str, new: jax.Array, index_BT: jax.Array, axes: tuple[str, ...]
) -> jax.Array:
    """Adds new positions to a cache: [B, T, ...] -> the whole cache, [B, S, ...].

    Each position is stored at its index, of `cache_length` positions S. Entries later than the
    current position of a row are invalid, and are overwritten when the row reaches them. `axes` are
    the logical axes of `new`.
    """
    assert layer.cache_length is not None
    examples, _, *rest = new.shape
    cache = layer.cached(name, (examples, layer.cache_length, *rest), new.dtype)
    rows_B1 = jnp.arange(examples)[:, None]
    cache = cache.at[rows_B1, index_BT].set(new)
    layer.set_cached(name, cache)
    return layer.constrain(cache, axes)


def visible_in_cache(positions: Positions, length: int, window: int | None = None) -> jax.Array:
    """True where a position of a cache of this length is visible: [B, T, S].

    These are the past, within the window if there is one, and the prefix.
    """
    at_S = jnp.arange(length)
    if window is None:
        visible_BTS = at_S <= positions.index_BT[:, :, None]
    else:
        visible_BTS = within_window(positions.index_BT, at_S, window)
    if positions.prefix_BT is not None:
        lengths_B = jnp.sum(positions.prefix_BT, axis=1)
        visible_BTS |= at_S < lengths_B[:, None, None]
    return visible_BTS
