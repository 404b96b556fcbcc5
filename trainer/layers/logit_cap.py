import math

import jax
import jax.numpy as jnp

from trainer.layers.masks import HIDDEN


def soft_cap(x: jax.Array, cap: jax.Array | float) -> jax.Array:
    """cap * tanh(x / cap): close to x where it is small, and always within [-cap, cap].

    Bello et al. 2016; Gemma Team 2024.

    Example:
        >>> [round(float(soft_cap(jnp.float32(x), 50.0)), 3) for x in (0.1, 40.0, -1000.0)]
        [0.1, 33.202, -50.0]
    """
    return cap * jnp.tanh(x / cap)


def capped_attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    cap: jax.Array | float | None,
    mask: jax.Array | None = None,
    is_causal: bool = False,
    bias: jax.Array | None = None,
    sink_N: jax.Array | None = None,
) -> jax.Array:
    """Like `jax.nn.dot_product_attention`, with a cap on the logits, and sinks: [B, T, N, H].

    Logits and weights are float32. All of them, [B, N, T, S], are in memory at once.

    Args:
        k_BSKH: keys; K divides N.
        cap: see `soft_cap`; None for none.
        mask: True where a key is visible, [B, 1, T, S]; None where all are.
        is_causal: hides later positions as well.
        bias: added to the logits before the cap, [1 or B, N, T, S].
        sink_N: the logit of an additional key of each head, without a value.
    """
    batch, length, heads, head_dim = q_BTNH.shape
    kv_heads = k_BSKH.shape[2]
    q_BTKGH = q_BTNH.reshape(batch, length, kv_heads, heads // kv_heads, head_dim)
    logits_BKGTS = jnp.einsum(
        'btkgh,bskh->bkgts', q_BTKGH, k_BSKH, preferred_element_type=jnp.float32
    )
    logits_BKGTS = logits_BKGTS / math.sqrt(head_dim)
    if bias is not None:
        logits_BKGTS += bias.reshape(len(bias), *logits_BKGTS.shape[1:])
    if cap is not None:
        logits_BKGTS = soft_cap(logits_BKGTS, cap)
    if is_causal:
        past_TS = jnp.arange(length)[:, None] >= jnp.arange(k_BSKH.shape[1])
        mask = past_TS[None, None] if mask is None else mask & past_TS
    if mask is not None:
        logits_BKGTS = jnp.where(mask[:, :, None], logits_BKGTS, HIDDEN)
    if sink_N is None:
        weights_BKGTS = jax.nn.softmax(logits_BKGTS, axis=-1)
    else:
        total_BKGT1 = jax.nn.logsumexp(logits_BKGTS, axis=-1, keepdims=True)
        sink_KG11 = sink_N.reshape(kv_heads, -1, 1, 1)
        weights_BKGTS = jnp.exp(logits_BKGTS - jnp.logaddexp(total_BKGT1, sink_KG11))
    out_BTKGH = jnp.einsum('bkgts,bskh->btkgh', weights_BKGTS.astype(v_BSKH.dtype), v_BSKH)
    return out_BTKGH.reshape(q_BTNH.shape)
