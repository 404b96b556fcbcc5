"""What a layer keeps of earlier positions, while a model decodes token by token."""

import jax
import jax.numpy as jnp

from trainer.layers.base import Layer


def update_cache(
    layer: Layer, name: str, new: jax.Array, index_BT: jax.Array, axes: tuple[str, ...]
) -> jax.Array:
    """Keeps new positions beside the earlier ones: [B, T, ...] -> all of them, [B, S, ...].

    Each stands where its index says, of the `cache_length` positions S. What stands later than a
    row has come so far, be it of another example's longer prompt, means nothing: it is overwritten
    once the row comes there.

    Args:
        layer: keeps them.
        name: what is kept, among all that the layer keeps.
        new: of the positions that are added.
        index_BT: their positions.
        axes: the logical axes of `new`.
    """
    assert layer.cache_length is not None
    examples, _, *rest = new.shape
    kept = layer.cached(name, (examples, layer.cache_length, *rest), new.dtype)
    rows_B1 = jnp.arange(examples)[:, None]
    kept = kept.at[rows_B1, index_BT].set(new)
    layer.set_cached(name, kept)
    return layer.constrain(kept, axes)
