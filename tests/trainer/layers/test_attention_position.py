"""Positions in attention, against attention over one pair of positions after another."""

import json
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyglove as pg
import pytest

from tests.factories.parts import apply, init, turned
from tests.servers.processes import on_devices
from trainer.decoding import check_decoding
from trainer.layers import (
    Alibi,
    Attention,
    AttentionPosition,
    FeedForward,
    Gaussian,
    LlamaScaling,
    Positions,
    RelativeBias,
    Rotary,
    Stack,
    TransformerBlock,
    check_mixer,
    per_layer,
)
from trainer.layers.relative_position import ranges, slopes
from trainer.symbolic.errors import UserError

LENGTH = 12
X_BTD = jax.random.normal(jax.random.key(3), (2, LENGTH, 12))
PACKED = Positions.packed(jnp.array([[1] * 5 + [2] * 7, [1] * 2 + [2] * 8 + [0] * 2]))
UNPACKED = Positions.unpacked((2, LENGTH))


class Steps(AttentionPosition):
    """An own position: keys that are an odd number of tokens away lose `loss`."""

    loss: float = 2.0

    def bias(self, distance_BTS: jax.Array, num_heads: int, is_causal: bool) -> jax.Array:
        bias_BTS = -self.loss * (distance_BTS % 2)
        shape = (len(bias_BTS), num_heads, *bias_BTS.shape[1:])
        return jnp.broadcast_to(bias_BTS[:, None].astype(jnp.float32), shape)


POSITIONS: dict[str, AttentionPosition] = {
    'partial rotary': Rotary(50.0, fraction=0.5, scaling=LlamaScaling(4.0, original_length=16)),
    'relative': RelativeBias(8, max_distance=9, init=Gaussian(1.0)),
    'alibi': Alibi(),
    'own': Steps(),
}


def bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """The range of a distance, in whole numbers: d >= exact * (max / exact)^(j / wide)."""
    exact, wide = num_buckets // 2, num_buckets - num_buckets // 2
    if distance < exact:
        return max(distance, 0)
    begun = [j for j in range(wide) if distance**wide * exact**j >= max_distance**j * exact**wide]
    return exact + max(begun)


def bias_by_hand(layer: Attention, params: Any, head: int, distance: int) -> float:
    position, is_causal = layer.position, layer.mask == 'causal'
    match position:
        case Alibi():
            return -abs(distance) * [2**-4, 2**-8, 2**-2][head]
        case Steps():
            return -position.loss * (distance % 2)
        case RelativeBias():
            table, one_way = params['position']['table'], 8 if is_causal else 4
            if is_causal:
                return float(table[bucket(distance, 8, 9), head])
            side = one_way if distance < 0 else 0
            return float(table[side + bucket(abs(distance), 4, 9), head])
    return 0.0


def by_hand(layer: Attention, params: Any, positions: Positions) -> np.ndarray:
    """Attention with one head of keys and values, by loops."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x, index = np.asarray(X_BTD, np.float64), np.asarray(positions.index_BT)
    q, k, v = (np.einsum('btd,dnh->btnh', x, params[n]) for n in ('query', 'key', 'value'))
    if isinstance(layer.position, Rotary):
        # In 16 tokens the first pair turns 2.5 times, between 1 and 4, and the second 0.4 times.
        kept = (16 / (2 * math.pi) - 1) / 3
        each = [kept + (1 - kept) / 4, 50.0**-0.5 / 4]
        q, k = turned(q, index, each), turned(k, index, each)
    out = np.zeros(x.shape)
    for b, t, n in np.ndindex(*q.shape[:3]):
        seen = list(visible(layer, positions, b, t))
        logits = [
            k[b, s, 0] @ q[b, t, n] / math.sqrt(q.shape[-1])
            + bias_by_hand(layer, params, n, index[b, t] - index[b, s])
            for s in seen
        ]
        if layer.logit_cap is not None:
            logits = [layer.logit_cap * math.tanh(x / layer.logit_cap) for x in logits]
        weights = np.exp(logits) / np.sum(np.exp(logits))
        out[b, t] += weights @ v[b, seen, 0] @ params['output'][n]
    return out


def visible(layer: Attention, positions: Positions, b: int, t: int) -> Iterator[int]:
    segments = positions.segment_BT
    for s in range(LENGTH):
        if segments is not None and segments[b, s] != segments[b, t]:
            continue
        if layer.mask == 'full' or (s <= t and t - s < (layer.window or LENGTH)):
            yield s


@pytest.mark.pax('… logit cap, scale', '… ALiBi')
@pytest.mark.parametrize(
    'fields',
    [
        {'logit_cap': 2.0},
        {'window': 3},
        {'mask': 'full'},
        {},
        {'window': 3, 'logit_cap': 2.0},
        {'window': 8},
    ],
    ids=lambda fields: '-'.join(map(str, fields.values())) or 'causal',
)
@pytest.mark.parametrize('name', POSITIONS)
@pytest.mark.fast(1)
def test_attention_equals_loops_over_pairs(fields: dict[str, Any], name: str) -> None:
    position = POSITIONS[name].clone(deep=True)
    layer = Attention(3, head_dim=8, num_kv_heads=1, position=position, **fields)
    params = init(layer, X_BTD)['params']
    run = jax.jit(layer.module().apply)
    for positions in (UNPACKED, PACKED):
        wanted = by_hand(layer, params, positions)
        got = run({'params': params}, X_BTD, positions)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


def test_slopes_are_those_of_the_paper() -> None:
    assert slopes(8) == [2.0**-n for n in range(1, 9)]
    np.testing.assert_allclose(slopes(16), [2 ** (-n / 2) for n in range(1, 17)])
    # The last four of 12 heads have every other slope of 16.
    np.testing.assert_allclose(slopes(12)[8:], [2.0 ** (-n / 2) for n in (1, 3, 5, 7)])
    assert slopes(12)[:8] == slopes(8)
    assert slopes(1) == [2.0**-8]


@pytest.mark.parametrize('buckets', [(32, 128), (16, 128), (4, 3), (6, 50)])
def test_ranges_of_distances_grow_as_powers(buckets: tuple[int, int]) -> None:
    got = ranges(*buckets).tolist()
    assert got == [bucket(distance, *buckets) for distance in range(buckets[1] + 1)]
    assert got[-1] == buckets[0] - 1


def test_ranges_are_the_published_ones_of_t5() -> None:
    """32 for keys in the past: 16 distances, then from 16, 19, 21, …, 113 on."""
    got = ranges(32, 128)
    assert got[:16].tolist() == list(range(16))
    begin = [int(np.argmax(got == n)) for n in range(16, 32)]
    assert begin == [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


def test_far_keys_share_one_bias_and_a_prefix_has_the_one_of_the_same_position() -> None:
    layer = Attention(2, position=RelativeBias(4, max_distance=3, init=Gaussian(1.0)))
    prefix = UNPACKED._replace(prefix_BT=UNPACKED.index_BT < 4)
    check = jax.jit(layer.module().apply)
    variables = init(layer, X_BTD)
    table = variables['params']['position']['table']
    moved = table.at[0].add(1.0)
    again = {'params': variables['params'] | {'position': {'table': moved}}}
    # The first position sees only itself and the prefix after it, all with the same bias.
    got, wanted = (check(each, X_BTD, prefix) for each in (again, variables))
    np.testing.assert_allclose(got[:, 0], wanted[:, 0], rtol=1e-5, atol=1e-6)
    assert not np.allclose(got[:, 8], wanted[:, 8], atol=1e-4)


@pytest.mark.parametrize('name', POSITIONS)
@pytest.mark.parametrize('window', [None, 4])
@pytest.mark.slow
def test_layers_decode_what_they_compute_and_keep_segments_apart(
    window: int | None, name: str
) -> None:
    position = POSITIONS[name].clone(deep=True)
    layer = Attention(4, head_dim=8, num_kv_heads=2, window=window, position=position)
    check_decoding(layer, X_BTD, lengths=[5, 2])
    check_mixer(layer, X_BTD)


@pytest.mark.slow
@pytest.mark.parametrize('name', POSITIONS)
def test_scanned_layers_are_the_unrolled_ones(name: str) -> None:
    def stack(scan: Any) -> Stack:
        position = POSITIONS[name].clone(deep=True)
        attention = Attention(2, head_dim=8, position=position)
        return Stack([TransformerBlock(attention, FeedForward(8))], repeats=3, scan=scan)

    scanned, unrolled = stack('always'), stack('never')
    variables = init(scanned, X_BTD, PACKED)
    got = apply(scanned, variables, X_BTD, PACKED)
    wanted = apply(unrolled, {'params': per_layer(variables['params'])}, X_BTD, PACKED)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('window', [None, 2, 4])
def test_cudnn_refuses_a_bias_with_its_path(window: int | None) -> None:
    layer = Attention(2, position=Alibi(), implementation='cudnn', window=window)
    block = TransformerBlock(layer, FeedForward(8))
    with pytest.raises(UserError, match=r"attention\.implementation='cudnn' cannot add the biases"):
        init(block, X_BTD, PACKED)


class Wrong(AttentionPosition):
    """A bias without an axis of heads."""

    def bias(self, distance_BTS: jax.Array, num_heads: int, is_causal: bool) -> jax.Array:
        return distance_BTS.astype(jnp.float32)


def test_an_own_bias_of_another_shape_is_refused_with_its_path() -> None:
    with pytest.raises(UserError, match=r'position \(Wrong\): `bias` must return \[B, N, T, S\]'):
        init(Attention(2, position=Wrong()), X_BTD)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'num_buckets': 2}, 'num_buckets must be at least 4'),
        ({'num_buckets': 7}, 'num_buckets must be even'),
        ({'max_distance': 16}, 'max_distance above half of it: 32 and 16'),
    ],
)
def test_impossible_ranges_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RelativeBias(**fields)


_SCRIPT = """
import json
import jax
import jax.numpy as jnp
from tests.factories.parts import init, on_meshes_of_sequences
from tests.trainer.layers.test_attention_position import POSITIONS
from trainer.layers import Attention, Positions

x = jax.random.normal(jax.random.key(0), (4, 32, 8))
segments = jnp.array([[1, 1, 2, 3], [1, 2, 2, 2], [1, 1, 1, 1], [1, 1, 2, 0]])
packed = Positions.packed(jnp.repeat(segments, 8, 1))
out = {}
for kind in ('partial rotary', 'relative', 'alibi'):
    position = POSITIONS[kind]
    for window, positions in ((None, packed), (8, Positions.unpacked((4, 32)))):
        layer = Attention(2, position=position.clone(deep=True), window=window)
        variables = init(layer, x)
        for name, found in on_meshes_of_sequences(layer, variables, x, positions).items():
            out.setdefault(name, []).extend(found)
print(json.dumps(out))
"""


@pytest.mark.slow
def test_many_devices_give_what_one_does() -> None:
    out = json.loads(on_devices(_SCRIPT))
    for name in ('positions', 'mixed'):
        for got, wanted in zip(out[name], out['one device'], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_positions_are_candidates_of_a_search() -> None:
    candidates: Any = ['rotary', 'none', Rotary(fraction=0.5), RelativeBias(), Alibi(), Steps()]
    space = Attention(2, position=pg.oneof(candidates))
    made = list(pg.iter(space))
    assert [each.position for each in made] == candidates
