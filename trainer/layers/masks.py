from collections.abc import Iterator

import jax
import jax.numpy as jnp

from trainer.layers.base import Layer
from trainer.layers.positions import Positions
from trainer.symbolic.component import OWN_PACKAGES, Component, components

HIDDEN = -0.7 * float(jnp.finfo(jnp.float32).max)
"""The logit of a hidden key. Minus infinity has no softmax where all keys are hidden."""


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


def require_mask(layer: Layer, name: str, mask: str, is_prefix: bool = False) -> None:
    """Raises ValueError if a part of a layer shows other positions than those of a mask.

    A mixer says its mask with a field or an attribute `mask`, 'causal' or 'full'. A mixer that
    shows the whole prefix of `Positions` has `sees_prefix = True`. One that says nothing is taken
    as causal.

    Args:
        name: the field that needs the mask.
        is_prefix: requires `sees_prefix` as well.
    """
    for mixer, found in _mixers(layer):
        where = f'{mixer.sym_path} ({type(mixer).__name__})'
        if found != mask:
            raise ValueError(
                f'{name}: its attention must have mask={mask!r}, but {where} has {found!r}'
            )
        if is_prefix and not getattr(mixer, 'sees_prefix', False):
            raise ValueError(
                f'{name}: {where} does not show the whole prefix. If it does, set sees_prefix = '
                'True in its class'
            )


def _mixers(layer: Layer) -> Iterator[tuple[Component, str]]:
    """The mixers of positions in a layer, each with its mask."""
    for each in components(layer):
        if (mask := _own_mask(each)) is not None:
            yield each, mask
        is_own = each is layer and type(layer).__module__.partition('.')[0] not in OWN_PACKAGES
        for mixer in (layer if is_own else None, each.sym_getattr('attention', None)):
            if isinstance(mixer, Layer) and not (
                mixer.is_pointwise or any(map(_own_mask, components(mixer)))
            ):
                yield mixer, 'causal'


def _own_mask(component: Component) -> str | None:
    mask = getattr(component, 'mask', None)
    return mask if mask in ('causal', 'full') else None
