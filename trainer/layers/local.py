from collections.abc import Callable

import jax
import jax.numpy as jnp

Attend = Callable[..., jax.Array]
"""Queries [B, T, N, H], keys and values [B, S, K, H], mask [B, 1, T, S] -> [B, T, N, H].

It takes `bias=`, which is None or added to the logits: [1 or B, N, T, S].
"""


def within_window(queries: jax.Array, keys_S: jax.Array, window: int) -> jax.Array:
    """True where a key is at the position of a query, or at one of the `window - 1` before it.

    Args:
        queries: positions [..., T].

    Returns:
        [..., T, S].

    Example:
        >>> at = jnp.arange(4)
        >>> within_window(at, at, 2).astype(int).tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    back = queries[..., None] - keys_S
    return (back >= 0) & (back < window)


def attend_in_blocks(
    attend: Attend,
    q_BCWNH: jax.Array,
    k_BCWKH: jax.Array,
    v_BCWKH: jax.Array,
    segment_BCW: jax.Array | None = None,
    as_examples: bool = False,
    bias_BCNWS: jax.Array | None = None,
) -> jax.Array:
    """Attention within a window, in time and memory that grow linearly with T.

    Positions are in C blocks, each as long as the window W. The queries of a block see only keys of
    this block and of the previous one (Beltagy et al. 2020, section 3.1).

    Args:
        attend: attention of one block of each example.
        segment_BCW: as in `Positions`, in blocks.
        as_examples: calls `attend` with all blocks as examples, for kernels without `vmap`;
            otherwise maps it over blocks.
        bias_BCNWS: added to the logits of each block; `with_previous` has its keys. Kernels that
            take blocks as examples have none.
    """
    examples, blocks, window = q_BCWNH.shape[:3]
    k_BCSKH, v_BCSKH = with_previous(k_BCWKH), with_previous(v_BCWKH)
    mask_BC1WS = _visible(blocks, window, segment_BCW)
    if not as_examples:

        def of_block(bias_BNWS: jax.Array | None, *each: jax.Array) -> jax.Array:
            return attend(*each, bias=bias_BNWS)

        mapped = jax.vmap(of_block, in_axes=1, out_axes=1)
        return mapped(bias_BCNWS, q_BCWNH, k_BCSKH, v_BCSKH, mask_BC1WS)
    mask_BC1WS = jnp.broadcast_to(mask_BC1WS, (examples, *mask_BC1WS.shape[1:]))
    each = (q_BCWNH, k_BCSKH, v_BCSKH, mask_BC1WS)
    return attend(*(x.reshape(-1, *x.shape[2:]) for x in each)).reshape(q_BCWNH.shape)


def _visible(blocks: int, window: int, segment_BCW: jax.Array | None) -> jax.Array:
    """The mask of each block over the previous block and itself: [B or 1, C, 1, W, S]."""
    at_S = jnp.arange(-window, window)
    exists_CS = (at_S >= 0) | (jnp.arange(blocks) > 0)[:, None]  # The first has no previous block.
    near_WS = within_window(at_S[window:], at_S, window)
    mask_BC1WS = (near_WS & exists_CS[:, None])[None, :, None]
    if segment_BCW is None:
        return mask_BC1WS
    same_BCWS = segment_BCW[..., None] == with_previous(segment_BCW)[:, :, None]
    return mask_BC1WS & same_BCWS[:, :, None]


def in_blocks_of(window: int, x_BT: jax.Array) -> jax.Array:
    """Splits positions into blocks: [B, T, ...] -> [B, C, window, ...], padded with zeros."""
    examples, length, *rest = x_BT.shape
    filling = [(0, 0), (0, -length % window)] + [(0, 0)] * len(rest)
    return jnp.pad(x_BT, filling).reshape(examples, -1, window, *rest)


def with_previous(x_BCW: jax.Array) -> jax.Array:
    """Puts the previous block before each block: [B, C, W, ...] -> [B, C, 2 * W, ...]."""
    before = jnp.concatenate([jnp.zeros_like(x_BCW[:, :1]), x_BCW[:, :-1]], axis=1)
    return jnp.concatenate([before, x_BCW], axis=2)
