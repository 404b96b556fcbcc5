import jax
import jax.numpy as jnp

from trainer.layers.base import Layer


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
