"""Attention with each of its options, and attention by loops in float64."""

from typing import Any

import numpy as np

from tests.factories.parts import rotated
from trainer.layers import Attention, RMSNorm

ATTENTION = {
    'attention of normalized heads': Attention(
        4, num_kv_heads=2, qk_norm=RMSNorm(), softmax_scale=0.7, bias=['query', 'key', 'value']
    ),
    'local attention of scaled heads': Attention(
        2, window=3, softmax_scale=1.5, per_dim_scale=True, logit_cap=2.0, bias=['output']
    ),
    'attention with sinks': Attention(4, num_kv_heads=2, sinks=True),
    'local attention with sinks': Attention(2, window=3, sinks=True, bias='zeros'),
    'attention of one kernel': Attention(
        4, num_kv_heads=2, combine_qkv=True, bias=['query', 'value'], qk_norm=RMSNorm()
    ),
}
"""Layers for sequences of width 8."""


def attention_by_hand(layer: Attention, p: Any, x_BTD: Any, segments: Any) -> Any:
    """The results of a layer, one query and one head at a time.

    Args:
        layer: attention with rotary positions of the usual wavelength.
        p: its parameters in float64.
        x_BTD: the sequences.
        segments: the segment of each position, of which equal ones are neighbours.
    """
    index = np.array([[list(row[:t]).count(row[t]) for t in range(len(row))] for row in segments])
    kernels = _apart(p['qkv']) if layer.combine_qkv else p
    q, k, v = (
        np.einsum('btd,dnh->btnh', x_BTD, kernels[name]) + p.get(f'{name}_bias', 0)
        for name in ('query', 'key', 'value')
    )
    if layer.qk_norm is not None:
        q, k = (_normal(x, p[f'{name}_norm']['scale']) for x, name in ((q, 'query'), (k, 'key')))
    q, k = (rotated(x, index, 10_000.0) for x in (q, k))
    if layer.per_dim_scale:
        q = q * np.log1p(np.exp(p['per_dim_scale'])) / np.log(2)
    scale, shared = layer.softmax_scale or q.shape[-1] ** -0.5, q.shape[2] // k.shape[2]
    out = np.zeros(x_BTD.shape)
    for b, t, n in np.ndindex(*q.shape[:3]):
        last = t + 1 if layer.mask == 'causal' else len(segments[b])
        first = 0 if layer.window is None else max(0, t + 1 - layer.window)
        seen = [s for s in range(first, last) if segments[b, s] == segments[b, t]]
        logits = np.array([q[b, t, n] @ k[b, s, n // shared] * scale for s in seen])
        if layer.logit_cap is not None:
            logits = layer.logit_cap * np.tanh(logits / layer.logit_cap)
        weights = np.exp(logits)
        weights = weights / (weights.sum() + (np.exp(p['sinks'][n]) if layer.sinks else 0))
        mean = sum(w * v[b, s, n // shared] for w, s in zip(weights, seen, strict=True))
        out[b, t] += mean @ p['output'][n]
    return out + p.get('output_bias', 0)


def _apart(kernel: Any) -> dict[str, Any]:
    """The kernels of queries, keys and values, one query head after another."""
    *queries, key, value = kernel
    heads = [query[:, k] for k in range(key.shape[1]) for query in queries]
    return {'query': np.stack(heads, axis=1), 'key': key, 'value': value}


def _normal(x: Any, scale: Any) -> Any:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * (1 + scale)
