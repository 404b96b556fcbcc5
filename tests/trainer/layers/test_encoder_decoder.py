"""Attention masks: prefixes, and cross-attention to an encoder."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance.layer_examples import X_BTD, block, decoder_block, encoder_decoder
from tests.factories.parts import apply, init
from trainer.layers import (
    Attention,
    CrossAttention,
    Embedding,
    Linear,
    Memory,
    Positions,
    Stack,
    TransformerEncoderDecoder,
)

LENGTH = X_BTD.shape[1]


def sees(layer: Any, x_BTD: Any, *args: Any) -> np.ndarray:
    """True if the result at t depends on the input at s, in the first row: [T, S]."""
    variables = init(layer, x_BTD, *args)
    out = jax.jacobian(lambda x: apply(layer, variables, x, *args)[0])(x_BTD)
    return np.any(np.asarray(out)[:, :, 0] != 0, axis=(1, 3))


def test_attention_within_a_prefix_is_bidirectional() -> None:
    prefix = jnp.arange(LENGTH)[None] < jnp.array([[3], [0]])
    unpacked = Positions.unpacked((2, LENGTH))
    seen = sees(Attention(2), X_BTD, Positions(unpacked.index_BT, unpacked.segment_BT, prefix))
    wanted = np.tril(np.ones((LENGTH, LENGTH), bool))
    wanted[:, :3] = True
    np.testing.assert_array_equal(seen, wanted)


def test_a_prefix_ends_with_its_segment() -> None:
    segments = jnp.array([[1, 1, 1, 2, 2, 2]] * 2)
    prefix = jnp.array([[1, 1, 0, 1, 1, 0]] * 2, bool)
    index = jnp.array([[0, 1, 2, 0, 1, 2]] * 2)
    seen = sees(Attention(2), X_BTD, Positions(index, segments, prefix))
    one = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 1]], bool)
    nothing = np.zeros((3, 3), bool)
    np.testing.assert_array_equal(seen, np.block([[one, nothing], [nothing, one]]))


def test_no_prefix_is_causal_attention() -> None:
    layer, positions = Attention(2), Positions.unpacked((2, LENGTH))
    variables = init(layer, X_BTD)
    no_prefix = jnp.zeros((2, LENGTH), bool)
    none = Positions(positions.index_BT, positions.segment_BT, no_prefix)
    one, other = (apply(layer, variables, X_BTD, each) for each in (positions, none))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('kv_heads', [None, 1])
def test_cross_attention_is_attention_to_the_memory(kv_heads: int | None) -> None:
    layer = CrossAttention(2, num_kv_heads=kv_heads)
    memory = X_BTD[:, :4] + 1
    positions = Positions.unpacked((2, LENGTH))
    variables = init(layer, X_BTD, positions, Memory(memory))
    params = jax.tree.map(np.asarray, variables['params'])
    q = np.einsum('btd,dnh->btnh', X_BTD, params['query'])
    k, v = (np.einsum('bsd,dnh->bsnh', memory, params[name]) for name in ('key', 'value'))
    k, v = (np.repeat(each, 2 // each.shape[2], axis=2) for each in (k, v))
    scores = np.einsum('btnh,bsnh->bnts', q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    wanted = np.einsum('bnts,bsnh,nhd->btd', weights, v, params['output'])
    got = apply(layer, variables, X_BTD, positions, Memory(memory))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_padding_and_other_segments_of_the_memory_are_not_seen() -> None:
    layer = CrossAttention(2)
    unpacked, memory = Positions.unpacked((2, LENGTH)), X_BTD[:, :4]

    def seen(positions: Positions, segments: Any) -> Any:
        variables = init(layer, X_BTD, positions, Memory(memory))

        def result(memory: Any) -> Any:
            return apply(layer, variables, X_BTD, positions, Memory(memory, segments))[0]

        return np.any(np.asarray(jax.jacobian(result)(memory))[:, :, 0] != 0, axis=(1, 3))

    padded = seen(unpacked, jnp.array([[1, 1, 0, 0]] * 2))
    np.testing.assert_array_equal(padded, [[True, True, False, False]] * LENGTH)
    packed = Positions(unpacked.index_BT, jnp.array([[1, 1, 1, 2, 2, 2]] * 2))
    by_segment = seen(packed, jnp.array([[1, 2, 2, 0]] * 2))
    first, second = [True, False, False, False], [False, True, True, False]
    np.testing.assert_array_equal(by_segment, [first] * 3 + [second] * 3)


@pytest.mark.slow
def test_packed_pairs_equal_unpacked_pairs() -> None:
    model = encoder_decoder()
    ids = jnp.array([[1, 2, 3, 4, 5]])
    variables = init(model, ids, ids)
    source = Positions(jnp.array([[0, 1, 0, 1, 2]]), jnp.array([[1, 1, 2, 2, 2]]))
    target = Positions(jnp.array([[0, 1, 2, 0, 1]]), jnp.array([[1, 1, 1, 2, 2]]))
    packed = apply(model, variables, ids, ids, source, target)
    apart = [
        apply(model, variables, ids[:, :2], ids[:, :3]),
        apply(model, variables, ids[:, 2:], ids[:, 3:]),
    ]
    np.testing.assert_allclose(packed, jnp.concatenate(apart, axis=1), rtol=1e-4, atol=1e-5)


def test_the_encoder_may_have_a_table_and_the_decoder_a_head_of_its_own() -> None:
    fields = {'encoder': Stack([block('full')]), 'decoder': Stack([decoder_block()])}
    model = TransformerEncoderDecoder(
        embedding=Embedding(6, 8), encoder_embedding=Embedding(9, 8),
        head=Linear(6, axes=['embed', 'vocab']), **fields,
    )  # fmt: skip
    ids = jnp.array([[1, 2, 3]])
    params = init(model, ids, ids)['params']
    assert params['encoder_embedding']['table'].shape == (9, 8)
    assert params['head']['kernel'].shape == (8, 6)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'encoder': Stack([block()])}, "encoder: its attention must have mask='full'"),
        ({'decoder': Stack([block('full')])}, "decoder: its attention must have mask='causal'"),
        ({'encoder_embedding': Embedding(6, 4)}, r'encoder_embedding.dims \(4\) must equal'),
        ({'head': Linear(5)}, r'head.output_dims \(5\) must equal'),
    ],
)
def test_halves_that_do_not_fit_are_refused(fields: dict[str, Any], message: str) -> None:
    whole = {
        'embedding': Embedding(6, 8),
        'encoder': Stack([block('full')]),
        'decoder': Stack([decoder_block()]),
    }
    with pytest.raises(ValueError, match=message):
        TransformerEncoderDecoder(**whole | fields)
