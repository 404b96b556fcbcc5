"""Attention within a window."""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import apply, init, rotated, token_by_token
from tests.factories.tiny import experiment
from tests.servers.processes import on_devices
from trainer.inputs.synthetic import SyntheticLmInput
from trainer.layers import Attention, FeedForward, Positions, Stack, TransformerBlock
from trainer.layers.base import CACHE, ForwardContext, forward_context
from trainer.layers.local import attend_in_blocks, in_blocks_of, with_previous
from trainer.program.costs import static_costs
from trainer.symbolic.component import key
from trainer.symbolic.errors import UserError

LENGTH = 11
X_BTD = jax.random.normal(jax.random.key(3), (2, LENGTH, 8))
SEGMENTS = jnp.array([[1] * 5 + [2] * 6, [1] * 2 + [2] * 7 + [0] * 2])
INDEX = jnp.array([[*range(5), *range(6)], [*range(2), *range(7), *range(2)]])
PACKED = Positions(INDEX, SEGMENTS)


def by_hand(layer: Attention, variables: Any, positions: Positions) -> np.ndarray:
    """Attention over all pairs of positions, with a mask of the window."""
    params = jax.tree.map(np.asarray, variables['params'])
    q, k, v = (np.einsum('btd,dnh->btnh', X_BTD, params[n]) for n in ('query', 'key', 'value'))
    q, k = (rotated(x, np.asarray(positions.index_BT), 10_000.0) for x in (q, k))
    if layer.per_dim_scale:
        q = q * np.log1p(np.exp(params['per_dim_scale'])) / np.log(2)
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    logits = np.einsum('btnh,bsnh->bnts', q, k) / np.sqrt(q.shape[-1])
    if layer.logit_cap is not None:
        logits = layer.logit_cap * np.tanh(logits / layer.logit_cap)
    back = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    visible = ((back >= 0) & (back < (layer.window or LENGTH)))[None]
    if positions.segment_BT is not None:
        segments = np.asarray(positions.segment_BT)
        visible = visible & (segments[:, :, None] == segments[:, None])
    weights = np.exp(np.where(visible[:, None], logits, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum('bnts,bsnh,nhd->btd', weights, v, params['output'])


@pytest.mark.pax('… local attention')
@pytest.mark.parametrize(
    'fields',
    [
        {'window': 3, 'num_kv_heads': 1},
        {'window': 6, 'logit_cap': 1.5, 'per_dim_scale': True},
        {'window': 1},
        {'window': 11},
        {'window': 50},
    ],
    ids=lambda fields: '-'.join(map(str, fields.values())),
)
@pytest.mark.fast(1)
def test_each_position_sees_a_window(fields: dict[str, Any]) -> None:
    layer = Attention(2, **fields)
    variables = init(layer, X_BTD)
    if layer.per_dim_scale:
        variables['params']['per_dim_scale'] = jnp.array([0.0, 1.0, -1.0, 2.0])
    run = jax.jit(layer.module().apply)
    for positions in (Positions.unpacked((2, LENGTH)), PACKED):
        wanted = by_hand(layer, variables, positions)
        np.testing.assert_allclose(run(variables, X_BTD, positions), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_gradients_are_those_of_attention_over_all_pairs() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (2, LENGTH, 2, 4)) for key in keys)
    back = jnp.arange(LENGTH)[:, None] - jnp.arange(LENGTH)
    visible = (((back >= 0) & (back < 4)) & (SEGMENTS[:, :, None] == SEGMENTS[:, None]))[:, None]

    def attend(q: Any, k: Any, v: Any, mask: Any, bias: Any = None) -> Any:
        return jax.nn.dot_product_attention(q, k, v, bias, mask)

    def in_blocks(as_examples: bool) -> Callable[..., Any]:
        def result(*arrays: Any) -> Any:
            q, k, v, segments = (in_blocks_of(4, x) for x in (*arrays, SEGMENTS))
            out = attend_in_blocks(attend, q, k, v, segments, as_examples=as_examples)
            return jnp.sum(jnp.sin(out.reshape(2, -1, 2, 4)[:, :LENGTH]))

        return jax.jit(jax.grad(result, (0, 1, 2)))

    def all_pairs(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(jnp.sin(attend(q, k, v, visible)))

    wanted = jax.jit(jax.grad(all_pairs, (0, 1, 2)))(q, k, v)
    for as_examples in (False, True):
        for got, each in zip(in_blocks(as_examples)(q, k, v), wanted, strict=True):
            np.testing.assert_allclose(got, each, rtol=1e-4, atol=1e-5)


def test_biases_are_added_in_blocks() -> None:
    back = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    visible = ((back >= 0) & (back < 4))[None, None]
    at_CW = in_blocks_of(4, jnp.arange(LENGTH)[None])
    back_CWS = at_CW[..., None] - with_previous(at_CW)[:, :, None]
    x = X_BTD.reshape(2, LENGTH, 2, 4)

    def attend(q: Any, k: Any, v: Any, mask: Any, bias: Any = None) -> Any:
        return jax.nn.dot_product_attention(q, k, v, bias, mask)

    def slopes(back: Any) -> Any:
        return jnp.array([1.0, -2.0])[:, None, None] * back[..., None, :, :]

    blocks = in_blocks_of(4, x)
    got = attend_in_blocks(attend, blocks, blocks, blocks, bias_BCNWS=slopes(back_CWS))
    wanted = attend(x, x, x, visible, slopes(back)[None])
    np.testing.assert_allclose(got.reshape(2, -1, 2, 4)[:, :LENGTH], wanted, rtol=1e-4, atol=1e-5)


def decoded(layer: Attention, chunks: list[tuple[int, list[int]]]) -> tuple[Any, Any]:
    """The results of all positions and the last cache, with the rows read in chunks.

    Args:
        chunks: positions of each pass, and how many of them each row has. The rest is padding.
    """
    variables = init(layer, X_BTD)
    cache: Any = {}
    begins, written = np.zeros(2, int), np.zeros(X_BTD.shape)

    @jax.jit
    def extend(cache: Any, x_BTD: Any, positions: Positions) -> Any:
        with forward_context(ForwardContext(cache_length=LENGTH)):
            return layer.module().apply({**variables, **cache}, x_BTD, positions, mutable=[CACHE])

    for length, counts in chunks:
        index_BT = begins[:, None] + np.arange(length)
        is_token_BT = np.arange(length) < np.array(counts)[:, None]
        x_BTD = np.asarray(X_BTD)[np.arange(2)[:, None], np.minimum(index_BT, LENGTH - 1)]
        x_BTD = np.where(is_token_BT[:, :, None], x_BTD, 9.0)
        positions = Positions(jnp.array(index_BT), lengths_B=jnp.array(counts))
        out, cache = extend(cache, x_BTD, positions)
        for row, count in enumerate(counts):
            written[row, begins[row] :][:count] = out[row, :count]
        begins += counts
    assert (begins == LENGTH).all()
    return written, cache[CACHE]


@pytest.mark.parametrize('window', [3, 5, 7, 9, 11, 50])
@pytest.mark.fast(1)
def test_a_cache_of_the_window_gives_the_results_of_whole_sequences(window: int) -> None:
    layer = Attention(2, num_kv_heads=1, window=window)
    wanted = apply(layer, init(layer, X_BTD), X_BTD)
    one = [(1, [1, 1])]
    for chunks in (
        [(7, [7, 7]), *one * 4],
        [(7, [7, 2]), (6, [1, 6]), *one * 3],  # The second continues a cache with padded rows.
        [(2, [1, 2]), (9, [5, 4]), *one * 5],
    ):
        written, cache = decoded(layer, chunks)
        np.testing.assert_allclose(written, wanted, rtol=1e-4, atol=1e-5)
        shapes = {leaf.shape for leaf in jax.tree.leaves(cache)}
        assert shapes == {(2, min(window, LENGTH), 1, 4)}


@pytest.mark.parametrize('lengths', [[7, 2], [1, 11]])
@pytest.mark.parametrize('window', [3, 7, 9])
@pytest.mark.slow
def test_incremental_results_equal_those_of_the_whole_sequence(
    window: int, lengths: list[int]
) -> None:
    layer = Attention(2, num_kv_heads=1, window=window)
    variables = init(layer, X_BTD)
    written = token_by_token(layer, variables, X_BTD, lengths)
    np.testing.assert_allclose(written, apply(layer, variables, X_BTD), rtol=1e-4, atol=1e-5)


def flops_per_token(length: int, **fields: Any) -> float:
    """FLOPs per token of a model of width 16 without other layers that mix positions."""
    fixed: Any = {'batch_size': 2, 'is_training': True, 'vocab_size': 20}
    data = SyntheticLmInput(sequence_length=length, **fixed)
    attention = {'task__model__stack__layers[0]__attention': Attention(2, **fields)}
    return static_costs(experiment(train_input=data, **attention))['flops_per_token']


def test_a_longer_row_costs_no_more_for_each_token() -> None:
    costs = [flops_per_token(length, window=8) for length in (8, 16, 32, 256)]
    # Scores and means of values: of 8 keys, of 16 keys in one block, then in two blocks.
    step = 3 * 2 * 2 * 16 * 8
    assert costs == [costs[0], costs[0] + step, costs[0] + step, costs[0] + step]
    assert flops_per_token(256) == costs[0] + 31 * step
    assert flops_per_token(256, window=8, implementation='cudnn') == costs[-1]


def test_neighbours_with_other_windows_are_other_programs() -> None:
    blocks = [TransformerBlock(Attention(2, window=w), FeedForward(8)) for w in (2, 2, 4)]
    assert key(blocks[0]) != key(blocks[2])
    stored = [part.name for part in Stack(blocks, scan='always').storage()]
    assert stored == ['layers_0x2', 'layers_2']


def test_a_prefix_is_refused() -> None:
    positions = Positions.unpacked((2, LENGTH))
    index, segment = positions.index_BT, positions.segment_BT
    positions = Positions(index, segment, prefix_BT=index < 3)
    with pytest.raises(UserError, match=r'window: all positions attend to a prefix'):
        init(Attention(2, window=20), X_BTD, positions)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'window': 0}, 'window must be at least 1: 0'),
        ({'window': 4, 'mask': 'full'}, r"window is causal: it needs mask='causal', not 'full'"),
    ],
)
def test_impossible_windows_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Attention(2, **fields)


_SCRIPT = """
import json
import jax
import jax.numpy as jnp
from tests.factories.parts import init, on_meshes_of_sequences
from trainer.layers import Attention, DepthwiseConv1D, Positions

layer = Attention(
    2, window=8, per_dim_scale=True,
    query_convolution=DepthwiseConv1D(), key_convolution=DepthwiseConv1D(),
)
x = jax.random.normal(jax.random.key(0), (4, 32, 8))
positions = Positions.unpacked((4, 32))._replace(
    segment_BT=jnp.repeat(jnp.array([[1, 1, 2, 3], [1, 2, 2, 2], [1, 1, 1, 1], [1, 1, 2, 0]]), 8, 1)
)
variables = init(layer, x)
taps = {'kernel': jax.random.normal(jax.random.key(1), (3, 2, 4))}
variables['params'] |= {'query_convolution': taps, 'key_convolution': taps}
print(json.dumps(on_meshes_of_sequences(layer, variables, x, positions)))
"""


@pytest.mark.slow
def test_many_devices_give_what_one_does() -> None:
    out = json.loads(on_devices(_SCRIPT))
    for name in ('positions', 'mixed'):
        for got, wanted in zip(out[name], out['one device'], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
