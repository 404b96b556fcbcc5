"""Latent attention against the equations of its paper, its caches, and its costs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import apply, init, rotated
from tests.trainer.layers.test_depthwise import drawn
from trainer.decoding import check_decoding
from trainer.layers import LatentAttention, Layer, Positions, Rotary
from trainer.layers.base import CACHE, ForwardContext, forward_context
from trainer.layers.latent_attention import absorbing_is_cheaper
from trainer.layers.parameters import MatrixAxes
from trainer.program.flops import flops
from trainer.symbolic.errors import UserError

X_BTD = jax.random.normal(jax.random.key(3), (2, 9, 8))
SIZES: dict[str, Any] = {'latent_dims': 6, 'head_dim': 4, 'rotary_dims': 2, 'value_dim': 3}
COMPRESSED = LatentAttention(2, **SIZES, query_latent_dims=6)


def by_hand(
    p: Any,
    x: Any,
    segments: Any,
    prefix: Any = None,
    is_causal: bool = True,
    wavelength: float = 10_000.0,
) -> Any:
    """Equations 9 to 19 of DeepSeek-V2, in float64, one pair of positions at a time."""

    def latent(name: str) -> Any:
        c = x @ p[name]
        rms = np.sqrt(np.mean(c**2, axis=-1, keepdims=True) + 1e-6)
        return c / rms * (1 + p[f'{name}_norm']['scale'])

    index = np.zeros(segments.shape, int)
    for b, t in np.ndindex(*segments.shape):
        if t and segments[b, t] == segments[b, t - 1]:
            index[b, t] = index[b, t - 1] + 1
    c, c_query = latent('latent'), latent('query_latent') if 'query_latent' in p else x
    heads = p['key'].shape[1]
    q, q_rotary = (np.einsum('btl,lnh->btnh', c_query, p[n]) for n in ('query', 'rotary_query'))
    k, v = (np.einsum('btl,lnh->btnh', c, p[name]) for name in ('key', 'value'))
    k_rotary = rotated((x @ p['rotary_key'])[:, :, None], index, wavelength)
    q = np.concatenate([q, rotated(q_rotary, index, wavelength)], axis=-1)
    k = np.concatenate([k, np.repeat(k_rotary, heads, axis=2)], axis=-1)
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, t, n in np.ndindex(*q.shape[:3]):
        seen = [
            s
            for s in range(x.shape[1])
            if segments[b, s] == segments[b, t]
            and (s <= t or not is_causal or (prefix is not None and prefix[b, s]))
        ]
        logits = np.array([q[b, t, n] @ k[b, s, n] for s in seen]) / np.sqrt(q.shape[-1])
        weights = np.exp(logits - logits.max())
        out[b, t, n] = weights @ v[b, seen, n] / weights.sum()
    return np.einsum('btnv,nvd->btd', out, p['output'])


def wide(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


@pytest.mark.parametrize('mask', ['causal', 'full'])
@pytest.mark.fast(1)
def test_a_prefix_and_whole_rows_are_seen(mask: str) -> None:
    layer = LatentAttention(2, **SIZES, query_latent_dims=6, mask=mask, position=Rotary(100.0))
    variables = drawn(init(layer, X_BTD))
    positions = Positions.unpacked((2, 9))
    prefix = positions.index_BT < jnp.array([[3], [5]]) if mask == 'causal' else None
    got = apply(layer, variables, X_BTD, positions._replace(prefix_BT=prefix))
    params, segments = wide(variables['params']), np.ones((2, 9), int)
    wanted = by_hand(params, wide(X_BTD), segments, prefix, mask == 'causal', 100.0)
    np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max())


def test_a_cache_has_latents_and_shared_keys_alone() -> None:
    layer, variables = COMPRESSED, init(COMPRESSED, X_BTD)

    def extend(x: jax.Array, positions: Positions) -> Any:
        with forward_context(ForwardContext(cache_length=20)):
            return layer.module().apply(variables, x, positions, mutable=[CACHE])[1]

    cache = jax.eval_shape(extend, X_BTD, Positions.unpacked((2, 9)))[CACHE]
    shapes = {name: leaf.shape for name, leaf in cache.items()}
    assert shapes == {'latents': (2, 20, 6), 'rotary_keys': (2, 20, 2)}


def operations(layer: Layer, queries: int, keys: int) -> float:
    """FLOPs of `queries` new positions in a cache of `keys`."""
    x_BTD = jax.ShapeDtypeStruct((1, queries, 32), jnp.float32)
    variables = jax.eval_shape(lambda x: layer.module().init(jax.random.key(0), x), x_BTD)

    def extend(variables: Any, x: Any) -> Any:
        with forward_context(ForwardContext(cache_length=keys)):
            return layer.module().apply(variables, x, mutable=[CACHE])

    return flops(extend, variables, x_BTD)


def test_a_decoded_token_is_multiplied_by_latents() -> None:
    layer, keys = LatentAttention(4, latent_dims=16, head_dim=8), 64
    down, rotary = 32 * 16 + 32 * 4, 4 * 4 * keys
    query, output, up = 4 * 32 * (8 + 4), 4 * 8 * 32, 4 * 16 * (8 + 8)
    absorbed = down + query + up + 4 * keys * (16 + 16) + rotary + output
    assert operations(layer, 1, keys) == 2 * absorbed
    expanded = keys * (down + query + up + 4 * keys * (8 + 8) + rotary + output)
    assert operations(layer, keys, keys) == 2 * expanded
    assert absorbing_is_cheaper(1, keys, 16, 16) and not absorbing_is_cheaper(keys, keys, 16, 16)


@pytest.mark.parametrize('latent_dims', [2, 40])
@pytest.mark.fast(1)
def test_small_and_large_latents_decode(latent_dims: int) -> None:
    layer = LatentAttention(2, latent_dims, head_dim=2, rotary_dims=2)
    check_decoding(layer, X_BTD, [3, 8])


def test_deepseek_v2_lite_has_the_published_number_of_parameters() -> None:
    # Its published configuration: hidden_size 2048, q_lora_rank null, kv_lora_rank 512.
    layer = LatentAttention(16, latent_dims=512, head_dim=128, rotary_dims=64, value_dim=128)
    x_BTD = jax.ShapeDtypeStruct((1, 4, 2048), jnp.float32)
    variables = jax.eval_shape(lambda x: init(layer, x), x_BTD)
    found = sum(leaf.size for leaf in jax.tree.leaves(variables))
    kv_a, kv_b = 2048 * (512 + 64) + 512, 512 * 16 * (128 + 128)
    assert found == 2048 * 16 * (128 + 64) + kv_a + kv_b + 16 * 128 * 2048 == 13_763_072


def test_hidden_matrices_and_their_heads_are_known() -> None:
    boxed = COMPRESSED.module().init(jax.random.key(0), X_BTD)['params']
    found = {name: getattr(box, 'matrix_axes', None) for name, box in boxed.items()}
    down, up = MatrixAxes((-2,), (-1,)), MatrixAxes((-3,), (-2, -1), heads=(-2,))
    assert {name: axes for name, axes in found.items() if axes} == {
        **dict.fromkeys(['latent', 'query_latent', 'rotary_key'], down),
        **dict.fromkeys(['query', 'rotary_query', 'key', 'value'], up),
        'output': MatrixAxes((-3, -2), (-1,), heads=(-3,)),
    }


def test_impossible_sizes_are_refused_with_their_path() -> None:
    with pytest.raises(ValueError, match='rotary_dims must be even: 3'):
        LatentAttention(2, 4, rotary_dims=3)
    with pytest.raises(ValueError, match=r'position\.fraction must be 1, since rotary_dims'):
        LatentAttention(2, 4, position=Rotary(fraction=0.5))
    with pytest.raises(ValueError, match='latent_dims must be at least 1: 0'):
        LatentAttention(2, 0)
    with pytest.raises(UserError, match='3 heads do not divide the width 8; set head_dim'):
        init(LatentAttention(3, 4), X_BTD)
    with pytest.raises(UserError, match=r'half of head_dim 2 is not even.*set rotary_dims'):
        init(LatentAttention(4, 4), X_BTD)


def test_full_attention_does_not_decode() -> None:
    layer = LatentAttention(2, 6, mask='full')
    message = pytest.raises(UserError, match='only causal attention can decode token by token')
    with message, forward_context(ForwardContext(cache_length=9)):
        init(layer, X_BTD)
