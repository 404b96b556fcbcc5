"""Depthwise convolutions of sequences, alone and in attention."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import apply, init, token_by_token
from trainer.layers import Attention, DepthwiseConv1D, Positions
from trainer.symbolic.errors import UserError

SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 3, 3], [1, 2, 2, 2, 2, 2, 0, 0]])
INDEX = jnp.array([[0, 1, 2, 3, 0, 1, 0, 1], [0, 0, 1, 2, 3, 4, 0, 1]])
PACKED = Positions(INDEX, jnp.array(SEGMENTS))
X_BTD = jax.random.normal(jax.random.key(3), (2, 8, 6))
X_BTNH = jax.random.normal(jax.random.key(4), (2, 8, 2, 4))


def drawn(variables: Any) -> Any:
    """Variables with random parameters: new taps are the identity."""
    leaves, structure = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(5), len(leaves))
    each = [jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, each)


def by_hand(kernel: Any, x: Any, segments: np.ndarray) -> np.ndarray:
    """The sum over taps, one position at a time."""
    kernel, x = np.asarray(kernel), np.asarray(x)
    out = np.zeros_like(x)
    for b, t in np.ndindex(x.shape[:2]):
        for back, tap in enumerate(kernel):
            if t >= back and segments[b, t - back] == segments[b, t]:
                out[b, t] += tap * x[b, t - back]
    return out


@pytest.mark.parametrize('width', [1, 3, 10])
@pytest.mark.parametrize('x', [X_BTD, X_BTNH], ids=['features', 'heads'])
@pytest.mark.fast(2)
def test_results_are_sums_over_earlier_positions(x: Any, width: int) -> None:
    layer = DepthwiseConv1D(width)
    variables = drawn(init(layer, x))
    kernel = variables['params']['kernel']
    assert kernel.shape == (width, *x.shape[2:])
    one = np.ones((2, 8), int)
    np.testing.assert_allclose(
        apply(layer, variables, x), by_hand(kernel, x, one), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        apply(layer, variables, x, PACKED), by_hand(kernel, x, SEGMENTS), rtol=1e-5, atol=1e-5
    )


def test_a_new_convolution_is_the_identity() -> None:
    layer = DepthwiseConv1D()
    np.testing.assert_array_equal(apply(layer, init(layer, X_BTD), X_BTD), X_BTD)


@pytest.mark.parametrize('x', [X_BTD, X_BTNH], ids=['features', 'heads'])
@pytest.mark.fast(1)
def test_incremental_results_equal_those_of_the_whole_sequence(x: Any) -> None:
    x = x.reshape(2, 8, -1)
    layer = DepthwiseConv1D(4)
    variables = drawn(init(layer, x))
    written = token_by_token(layer, variables, x, [5, 2])
    np.testing.assert_allclose(written, apply(layer, variables, x), rtol=1e-5, atol=1e-6)


def convolving(**fields: Any) -> Attention:
    return Attention(
        2,
        query_convolution=DepthwiseConv1D(3),
        key_convolution=DepthwiseConv1D(2),
        value_convolution=DepthwiseConv1D(4),
        **fields,
    )


@pytest.mark.pax('… logit cap, scale')
@pytest.mark.parametrize('fields', [pytest.param({}, marks=pytest.mark.slow), {'num_kv_heads': 1}])
@pytest.mark.fast(1)
def test_attention_convolves_its_projections(fields: Any) -> None:
    layer = convolving(position='none', **fields)
    variables = drawn(init(layer, X_BTD))
    params = jax.tree.map(np.asarray, variables['params'])

    def projected(name: str) -> np.ndarray:
        heads = np.einsum('btd,dnh->btnh', X_BTD, params[name])
        heads = by_hand(params[f'{name}_convolution']['kernel'], heads, SEGMENTS)
        return np.repeat(heads, 2 // heads.shape[2], axis=2)

    q, k, v = (projected(name) for name in ('query', 'key', 'value'))
    visible = np.tril(SEGMENTS[:, :, None] == SEGMENTS[:, None])[:, None]
    scores = np.where(visible, np.einsum('btnh,bsnh->bnts', q, k) / np.sqrt(3), -1e30)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    wanted = np.einsum('bnts,bsnh,nhd->btd', weights, v, params['output'])
    got = apply(layer, variables, X_BTD, PACKED)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('lengths', [[5, 2], pytest.param([1, 8], marks=pytest.mark.slow)])
@pytest.mark.slow
def test_incremental_attention_equals_that_of_the_whole_sequence(lengths: list[int]) -> None:
    layer = convolving(head_dim=4)
    variables = drawn(init(layer, X_BTD))
    written = token_by_token(layer, variables, X_BTD, lengths)
    np.testing.assert_allclose(written, apply(layer, variables, X_BTD), rtol=1e-4, atol=1e-4)


def test_new_convolutions_leave_attention_as_it_is() -> None:
    layer, plain = convolving(head_dim=4), Attention(2, head_dim=4)
    variables = init(layer, X_BTD)
    np.testing.assert_allclose(
        apply(layer, variables, X_BTD), apply(plain, variables, X_BTD), rtol=1e-5, atol=1e-6
    )


def test_impossible_fields_are_refused() -> None:
    with pytest.raises(ValueError, match='width must be at least 1: 0'):
        DepthwiseConv1D(0)
    with pytest.raises(ValueError, match=r"key_convolution is causal: it needs mask='causal'"):
        Attention(2, mask='full', key_convolution=DepthwiseConv1D())
    with pytest.raises(UserError, match=r'a sequence is \[B, T, D\]'):
        init(DepthwiseConv1D(), jnp.zeros((2, 8)))
