"""Attention with each of its options, against a loop over queries and heads in float64.

`test_mixers.py` has the contract of all mixers for the same layers.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.attention import ATTENTION, attention_by_hand
from tests.factories.parts import applied, apply, new_params
from tests.trainer.layers.test_depthwise import drawn
from trainer.layers import (
    Attention,
    CrossAttention,
    Layer,
    LayerNorm,
    Memory,
    Positions,
    RMSNorm,
)
from trainer.layers.parameters import MatrixAxes
from trainer.symbolic.component import bind, numbers

SEGMENTS = np.array([[1] * 12, [1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 0, 0]])
X_BTD = jax.random.normal(jax.random.key(3), (2, 12, 8))


def wide(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def shapes(layer: Layer, *args: Any) -> Any:
    return jax.tree.map(jnp.shape, jax.eval_shape(lambda: new_params(layer, *args)))


@pytest.mark.pax('… logit cap, scale')
@pytest.mark.parametrize('name', ATTENTION)
@pytest.mark.parametrize('packed', [True, False])
@pytest.mark.fast(len(ATTENTION))
def test_results_are_those_of_a_loop(name: str, packed: bool) -> None:
    layer, segments = ATTENTION[name], SEGMENTS if packed else np.ones_like(SEGMENTS)
    params = drawn(new_params(layer, X_BTD))
    wanted = attention_by_hand(layer, wide(params), wide(X_BTD), segments)
    positions = Positions.packed(jnp.array(segments)) if packed else None
    got = np.asarray(applied(layer, params, X_BTD, positions))
    is_token = segments != 0
    np.testing.assert_allclose(got[is_token], wanted[is_token], rtol=1e-4, atol=1e-4)


def test_a_scale_of_the_softmax_is_a_number() -> None:
    # One program has all values of it.
    layer = Attention(2, softmax_scale=0.25)
    params = new_params(layer, X_BTD)
    run = jax.jit(lambda values: bind(layer, values).module().apply({'params': params}, X_BTD))
    default = applied(Attention(2), params, X_BTD)
    np.testing.assert_allclose(run({'softmax_scale': 0.5}), default, rtol=1e-5, atol=1e-6)
    assert not np.allclose(run(numbers(layer)), default, atol=1e-3)


def test_biases_are_those_of_the_named_projections() -> None:
    kernels = {'query', 'key', 'value', 'output'}
    for bias, found in (
        ('none', set[str]()),
        (['query', 'value'], {'query_bias', 'value_bias'}),
        ('zeros', {f'{name}_bias' for name in kernels}),
    ):
        assert set(shapes(Attention(2, bias=bias), X_BTD)) == kernels | found


def test_heads_of_cross_attention_are_normalized() -> None:
    layer, positions = CrossAttention(2, qk_norm=LayerNorm()), Positions.unpacked((2, 12))
    memory = Memory(X_BTD[:, :4])
    params = drawn(new_params(layer, X_BTD, positions, memory))
    run = jax.jit(lambda params: apply(layer, {'params': params}, X_BTD, positions, memory))
    got = run(params)
    for name in ('query', 'key'):
        again = run(params | {name: 3 * params[name]})
        np.testing.assert_allclose(again, got, rtol=1e-3, atol=1e-4)


def test_queries_and_keys_have_norms_of_their_own() -> None:
    found = shapes(Attention(2, num_kv_heads=1, qk_norm=RMSNorm()), X_BTD)
    assert found['query_norm'] == found['key_norm'] == {'scale': (4,)}


def test_a_new_sink_is_one_more_key_with_the_logit_zero() -> None:
    layer, x_BTD = Attention(2, sinks=True, position='none'), X_BTD[:, :1]
    params = new_params(layer, x_BTD)
    assert params['sinks'].tolist() == [0.0, 0.0]
    without = {name: kernel for name, kernel in params.items() if name != 'sinks'}
    # Keys of zero have the logit zero, so half of the weight stays with the only position.
    without['key'] = params['key'] * 0
    alone = applied(Attention(2, position='none'), without, x_BTD)
    got = applied(layer, without | {'sinks': params['sinks']}, x_BTD)
    np.testing.assert_allclose(got, alone / 2, rtol=1e-5, atol=1e-6)


def test_sinks_of_cross_attention_take_weight() -> None:
    layer, positions = CrossAttention(2, sinks=True), Positions.unpacked((2, 12))
    memory = Memory(X_BTD[:, :4])
    params = new_params(layer, X_BTD, positions, memory)
    high = params | {'sinks': params['sinks'] + 50}
    assert np.abs(applied(layer, params, X_BTD, positions, memory)).max() > 0.01
    np.testing.assert_allclose(applied(layer, high, X_BTD, positions, memory), 0, atol=1e-6)


def test_one_kernel_is_several_of_the_same_heads() -> None:
    layer = Attention(4, num_kv_heads=2, combine_qkv=True)
    found = jax.eval_shape(layer.module().init, {'params': jax.random.key(0)}, X_BTD)['params']
    assert found.keys() == {'qkv', 'output'}
    box = found['qkv']
    # Two queries of each key, keys, values: each is a matrix, which Muon and width scaling see.
    assert box.value.shape == (4, 8, 2, 2)
    assert box.names == (None, 'embed', 'heads', 'kv')
    assert box.matrix_axes == MatrixAxes((-3,), (-2, -1), heads=(-2,))
    assert box.num_inputs == 8 and box.std == pytest.approx(8**-0.5)


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r'softmax_scale must be above 0: 0\.0'):
        Attention(2, softmax_scale=0.0)
    with pytest.raises(ValueError, match="sinks needs another implementation than 'cudnn'"):
        Attention(2, sinks=True, implementation='cudnn')
    with pytest.raises(ValueError, match=r"bias: expected 'none' or 'zeros' or a list.*'keys'"):
        Attention(2, bias=['keys'])
