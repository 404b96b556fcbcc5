"""Logit caps, scales of features, position embeddings, biases."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import apply, init
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    Gaussian,
    LearnedPositions,
    Positions,
    SinusoidalPositions,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.layers.activations import activate
from trainer.layers.logit_cap import capped_attention, soft_cap
from trainer.symbolic.errors import UserError

_IDS = jnp.array([[1, 2, 3, 4], [4, 3, 2, 1]])


def heads() -> list[jax.Array]:
    """Queries of four heads, keys and values of two: [2, 5, …, 8]."""
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (2, 5, n, 8)) for key, n in zip(keys, (4, 2, 2), strict=True)]


@pytest.mark.parametrize('is_causal', [False, True])
@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('of_bias', [None, 1, 2])
@pytest.mark.fast(6)
def test_a_high_cap_is_attention_without_one(
    of_bias: int | None, masked: bool, is_causal: bool
) -> None:
    segments = jnp.array([[1, 1, 2, 2, 2], [1, 2, 2, 3, 3]])
    mask = (segments[:, :, None] == segments[:, None])[:, None] if masked else None
    q, k, v = heads()
    bias = None if of_bias is None else jax.random.normal(jax.random.key(9), (of_bias, 4, 5, 5))
    got = capped_attention(q, k, v, 1e5, mask, is_causal, bias)
    wanted = jax.nn.dot_product_attention(q, k, v, bias, mask, is_causal=is_causal)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.pax('… logit cap, scale')
def test_logits_never_exceed_the_cap() -> None:
    q, k, v = heads()
    got = capped_attention(1e4 * q, k, v, cap=2.0)
    logits = 2.0 * np.sign(np.einsum('btnh,bsnh->bnts', q, np.repeat(k, 2, axis=2)))
    weights = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    wanted = np.einsum('bnts,bsnh->btnh', weights, np.repeat(v, 2, axis=2))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_new_scales_of_features_change_nothing_and_later_ones_do() -> None:
    x = jax.random.normal(jax.random.key(1), (2, 4, 8))
    plain, scaled = Attention(2), Attention(2, per_dim_scale=True)
    variables = init(scaled, x)
    scale = variables['params'].pop('per_dim_scale')
    assert scale.shape == (4,)
    wanted = apply(plain, variables, x)
    again = {'params': variables['params'] | {'per_dim_scale': scale}}
    np.testing.assert_allclose(apply(scaled, again, x), wanted, rtol=1e-5, atol=1e-6)
    again['params']['per_dim_scale'] = scale.at[0].set(3.0)
    assert not np.allclose(apply(scaled, again, x), wanted, atol=1e-3)


def model(**fields: Any) -> TransformerLm:
    block = TransformerBlock(Attention(2, position='none'), FeedForward(8))
    return TransformerLm(Embedding(6, 8), Stack([block]), **fields)


@pytest.mark.pax('Embeddings and softmax')
def test_logits_of_a_model_are_capped() -> None:
    capped = model(logits_cap=0.25)
    variables = init(capped, _IDS)
    logits = apply(model(), variables, _IDS)
    assert np.abs(logits).max() > 0.25
    np.testing.assert_allclose(
        apply(capped, variables, _IDS), 0.25 * np.tanh(logits / 0.25), rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(soft_cap(jnp.float32(1e-3), 30.0), 1e-3, rtol=1e-5)


@pytest.mark.parametrize('position', [SinusoidalPositions(), LearnedPositions(4)])
@pytest.mark.slow
def test_position_embeddings_distinguish_positions(position: Any) -> None:
    made = model(position_embedding=position)
    ids = jnp.array([[3, 3, 3, 3]])
    variables = init(made, ids)
    logits = apply(made, variables, ids)
    assert not np.allclose(logits[0, 0], logits[0, 3], atol=1e-4)
    # A segment of a packed row begins at position 0.
    packed = Positions(jnp.array([[0, 1, 0, 1]]), jnp.array([[1, 1, 2, 2]]))
    logits = apply(made, variables, ids, packed)
    np.testing.assert_allclose(logits[0, :2], logits[0, 2:], rtol=1e-5, atol=1e-6)


@pytest.mark.pax('… positions: rotary')
def test_sines_are_those_of_the_paper() -> None:
    added = apply(SinusoidalPositions(longest=100.0), {}, jnp.array([[0, 7]]), 6)
    turns = 7 / np.array([1.0, 10.0, 100.0])
    np.testing.assert_allclose(added[0, 0], [0, 0, 0, 1, 1, 1], atol=1e-6)
    np.testing.assert_allclose(added[0, 1], [*np.sin(turns), *np.cos(turns)], rtol=1e-5)


def test_more_positions_than_there_are_and_odd_widths_are_refused() -> None:
    with pytest.raises(UserError, match=r'max_length is 3, but rows have 4 positions'):
        init(model(position_embedding=LearnedPositions(3)), _IDS)
    with pytest.raises(UserError, match='must be even: 3'):
        apply(SinusoidalPositions(), {}, _IDS, 3)


def test_impossible_fields_are_refused() -> None:
    with pytest.raises(ValueError, match=r'logit_cap must be above 0: 0\.0'):
        Attention(2, logit_cap=0.0)
    with pytest.raises(ValueError, match='logit_cap needs another implementation'):
        Attention(2, logit_cap=50.0, implementation='cudnn')
    with pytest.raises(ValueError, match='logits_cap must be above 0'):
        model(logits_cap=-1.0)


@pytest.mark.pax('… logit cap, scale')
@pytest.mark.slow
def test_biases_are_added_and_kernels_use_their_initializer() -> None:
    x = jax.random.normal(jax.random.key(1), (2, 4, 256))
    layers = (
        (Attention(2, bias='zeros', init=Gaussian(0.5)), ['query', 'key', 'value', 'output']),
        (FeedForward(128, bias='zeros', init=Gaussian(0.5)), ['up', 'down']),
    )
    for layer, kernels in layers:
        params = init(layer, x)['params']
        assert set(params) == {name + end for name in kernels for end in ('', '_bias')}
        for name in kernels:
            assert not params[f'{name}_bias'].any()
            assert params[name].std() == pytest.approx(0.5, rel=0.02)
        last = f'{kernels[-1]}_bias'
        moved = params | {last: params[last] + 1}
        got, before = (apply(layer, {'params': each}, x) for each in (moved, params))
        np.testing.assert_allclose(got, before + 1, rtol=1e-4, atol=1e-3)
    table = init(Embedding(200, 64, init=Gaussian(0.5)), _IDS)['params']['table']
    assert table.std() == pytest.approx(0.5, rel=0.02)


def test_the_squared_relu_of_primer() -> None:
    assert activate(jnp.array([-2.0, 3.0]), 'squared_relu').tolist() == [0.0, 9.0]
