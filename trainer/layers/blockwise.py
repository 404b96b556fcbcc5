"""Attention in blocks of queries and keys, whose logits alone are in memory at a time.

The softmax is computed online (Milakov & Gimelshein 2018; Dao et al. 2022): a block of keys scales
down the sums of earlier blocks where it has a larger logit. The backward pass makes the weights of
a block again, from the maximum and the sum of each query.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from trainer.layers.logit_cap import soft_cap
from trainer.layers.masks import HIDDEN
from trainer.layers.positions import Positions


class Places(NamedTuple):
    """Positions of queries or keys, as masks and biases need them.

    Attributes:
        row_T: place of each in its row, from 0; -1 for positions that only fill a block.
        segment_BT, prefix_BT: as in `Positions`.
        index_BT: position of each in its segment, [1 or B, T]; None without a bias.
    """

    row_T: jax.Array
    segment_BT: jax.Array | None = None
    prefix_BT: jax.Array | None = None
    index_BT: jax.Array | None = None


class Visibility(NamedTuple):
    """The keys that a query sees, besides those of other segments.

    Attributes:
        is_causal: hides later keys, but for those of a prefix.
        window: hides all but the query's own position and the `window - 1` before it.
    """

    is_causal: bool = False
    window: int | None = None


class Shaping(NamedTuple):
    """Numbers that shape the logits.

    Attributes:
        cap: see `soft_cap`.
        bias_ND: added before the cap, by distance from 1 - T to T - 1: [N, 2 * T - 1].
    """

    cap: jax.Array | None = None
    bias_ND: jax.Array | None = None


class Sums(NamedTuple):
    """Sums over the keys so far, for S queries of G groups and K heads, in float32.

    Attributes:
        out_BKGSV: values, weighted by the exponential of their logit minus the maximum.
        max_BKGS: the largest logit.
        total_BKGS: the weights.
    """

    out_BKGSV: jax.Array
    max_BKGS: jax.Array
    total_BKGS: jax.Array


def no_keys(queries_BSKGH: jax.Array, value_dim: int) -> Sums:
    """The sums before the first key."""
    examples, queries, kv_heads, groups, _ = queries_BSKGH.shape
    shape = (examples, kv_heads, groups, queries)
    zeros = jnp.zeros(shape, jnp.float32)
    return Sums(jnp.zeros((*shape, value_dim), jnp.float32), zeros + HIDDEN, zeros)


def with_keys(
    sums: Sums,
    q_BSKGH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKV: jax.Array,
    queries: Places,
    keys: Places,
    shaping: Shaping,
    visible: Visibility,
) -> Sums:
    """Adds a block of keys to the sums."""
    logits_BKGST = _shaped(_products(q_BSKGH, k_BTKH), queries, keys, shaping, visible)
    max_BKGS = jnp.maximum(sums.max_BKGS, jnp.max(logits_BKGST, axis=-1))
    weights_BKGST = jnp.exp(logits_BKGST - max_BKGS[..., None])
    kept_BKGS = jnp.exp(sums.max_BKGS - max_BKGS)
    new_BKGSV = _product('bkgst,btkv->bkgsv', weights_BKGST.astype(v_BTKV.dtype), v_BTKV)
    return Sums(
        sums.out_BKGSV * kept_BKGS[..., None] + new_BKGSV,
        max_BKGS,
        sums.total_BKGS * kept_BKGS + jnp.sum(weights_BKGST, axis=-1),
    )


class Gradients(NamedTuple):
    """Gradients of a block, in float32."""

    q_BSKGH: jax.Array
    k_BTKH: jax.Array
    v_BTKV: jax.Array
    shaping: Shaping


class Ends(NamedTuple):
    """The results of queries over all keys, and their gradients.

    Attributes:
        max_BKGS: the largest logit.
        total_BKGS: the sum of the exponentials of logits minus the maximum.
        d_out_BKGSV: gradient of the weighted mean of the values.
        shared_BKGS: the part of the gradient of a logit that all keys have in common.
    """

    max_BKGS: jax.Array
    total_BKGS: jax.Array
    d_out_BKGSV: jax.Array
    shared_BKGS: jax.Array


def gradients(
    ends: Ends,
    q_BSKGH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKV: jax.Array,
    queries: Places,
    keys: Places,
    shaping: Shaping,
    visible: Visibility,
) -> Gradients:
    """Gradients of a block of queries and a block of keys."""

    def shaped(products_BKGST: jax.Array, shaping: Shaping) -> jax.Array:
        return _shaped(products_BKGST, queries, keys, shaping, visible)

    logits_BKGST, pull = jax.vjp(shaped, _products(q_BSKGH, k_BTKH), shaping)
    weights_BKGST = jnp.exp(logits_BKGST - ends.max_BKGS[..., None]) / ends.total_BKGS[..., None]
    d_out_BKGSV = ends.d_out_BKGSV.astype(v_BTKV.dtype)
    d_weights_BKGST = _product('bkgsv,btkv->bkgst', d_out_BKGSV, v_BTKV)
    d_products_BKGST, d_shaping = pull(
        weights_BKGST * (d_weights_BKGST - ends.shared_BKGS[..., None])
    )
    d_products_BKGST = (d_products_BKGST / math.sqrt(q_BSKGH.shape[-1])).astype(q_BSKGH.dtype)
    return Gradients(
        _product('bkgst,btkh->bskgh', d_products_BKGST, k_BTKH),
        _product('bkgst,bskgh->btkh', d_products_BKGST, q_BSKGH),
        _product('bkgst,bkgsv->btkv', weights_BKGST.astype(v_BTKV.dtype), d_out_BKGSV),
        d_shaping,
    )


def places(positions: Positions, with_index: bool = False) -> Places:
    """The places of `positions`; with their index, for a bias."""
    index_BT, segment_BT, prefix_BT = positions[:3]
    row_T = jnp.arange(index_BT.shape[1])
    # Rows without segments have the same positions.
    index_BT = index_BT[:1] if segment_BT is None else index_BT
    return Places(row_T, segment_BT, prefix_BT, index_BT if with_index else None)


def may_see(queries: Places, keys: Places, visible: Visibility) -> jax.Array:
    """False only if no query of a block sees any key of another block, by their rows."""
    may = jnp.ones((), bool)
    if visible.is_causal and keys.prefix_BT is None:
        may &= jnp.max(queries.row_T) >= keys.row_T[0]
    if visible.window is not None:
        may &= jnp.max(keys.row_T) > queries.row_T[0] - visible.window
    return may


def in_blocks(x_BT: jax.Array, block: int, axis: int = 1, fill: int = 0) -> jax.Array:
    """Splits an axis into blocks: [B, T, ...] -> [C, B, block, ...], the last of them filled."""
    length = x_BT.shape[axis]
    block = min(length, block)
    filling = [(0, 0)] * x_BT.ndim
    filling[axis] = (0, -length % block)
    filled = jnp.pad(x_BT, filling, constant_values=fill)
    shape = (*x_BT.shape[:axis], -1, block, *x_BT.shape[axis + 1 :])
    return jnp.moveaxis(filled.reshape(shape), axis, 0)


def places_in_blocks(places: Places, block: int) -> Places:
    """`Places` of each block."""
    row_CT = in_blocks(places.row_T, block, axis=0, fill=-1)
    return Places(row_CT, *(None if x is None else in_blocks(x, block) for x in places[1:]))


def _products(q_BSKGH: jax.Array, k_BTKH: jax.Array) -> jax.Array:
    return _product('bskgh,btkh->bkgst', q_BSKGH, k_BTKH) / math.sqrt(q_BSKGH.shape[-1])


def _product(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)


def _shaped(
    products_BKGST: jax.Array,
    queries: Places,
    keys: Places,
    shaping: Shaping,
    visible: Visibility,
) -> jax.Array:
    """Logits: products with biases, a cap, and hidden keys."""
    logits_BKGST = products_BKGST
    if shaping.bias_ND is not None:
        assert queries.index_BT is not None and keys.index_BT is not None
        distance_BST = queries.index_BT[:, :, None] - keys.index_BT[:, None]
        bias_NBST = shaping.bias_ND[:, distance_BST + shaping.bias_ND.shape[1] // 2]
        bias_BNST = jnp.moveaxis(bias_NBST, 0, 1)
        logits_BKGST += bias_BNST.reshape(len(bias_BNST), *logits_BKGST.shape[1:])
    if shaping.cap is not None:
        logits_BKGST = soft_cap(logits_BKGST, shaping.cap)
    mask_BST = _mask(queries, keys, visible)
    return jnp.where(mask_BST[:, None, None], logits_BKGST, HIDDEN)


def _mask(queries: Places, keys: Places, visible: Visibility) -> jax.Array:
    """True where a query sees a key: [1 or B, S, T]."""
    back_ST = queries.row_T[:, None] - keys.row_T
    mask_BST = jnp.broadcast_to(keys.row_T >= 0, back_ST.shape)[None]
    if visible.is_causal:
        past_BST = (back_ST >= 0)[None]
        if keys.prefix_BT is not None:
            past_BST = past_BST | keys.prefix_BT[:, None]
        mask_BST = mask_BST & past_BST
    if visible.window is not None:
        mask_BST = mask_BST & (back_ST < visible.window)
    if queries.segment_BT is not None and keys.segment_BT is not None:
        mask_BST = mask_BST & (queries.segment_BT[:, :, None] == keys.segment_BT[:, None])
    return mask_BST
