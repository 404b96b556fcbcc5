import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.positions import Positions
from trainer.symbolic.component import components


def same_segment(
    of_queries_BT: jax.Array | None, of_keys_BS: jax.Array | None = None
) -> jax.Array | None:
    """True where query and key belong to one segment: [B, 1, T, S]; None where all do.

    Args:
        of_queries_BT: the segment of each query.
        of_keys_BS: the segment of each key; None where queries and keys have the same positions.
    """
    of_keys_BS = of_queries_BT if of_keys_BS is None else of_keys_BS
    if of_queries_BT is None or of_keys_BS is None:
        return None
    return (of_queries_BT[:, :, None] == of_keys_BS[:, None, :])[:, None]


def causal_but_for_prefix(positions: Positions) -> jax.Array:
    """True where a key is in the past of a query, or in the prefix of its segment: [B, 1, T, T].

    Attention within a prefix is bidirectional (Raffel et al. 2020).
    """
    length = positions.index_BT.shape[1]
    past_TT = jnp.arange(length)[:, None] >= jnp.arange(length)
    mask = past_TT if positions.prefix_BT is None else past_TT | positions.prefix_BT[:, None, None]
    segments = same_segment(positions.segment_BT)
    return mask if segments is None else mask & segments


def require_mask(layer: Layer, name: str, mask: str) -> None:
    """Raises ValueError if attention in a layer, the field `name`, has another mask."""
    for each in components(layer):
        found = each.sym_init_args.get('mask', mask)
        if found != mask:
            raise ValueError(f'{name}: its attention must have mask={mask!r}, but has {found!r}')
