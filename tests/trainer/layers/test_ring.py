"""Attention around a ring of 8 simulated devices, against attention over all pairs of positions."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.servers.processes import on_devices
from trainer.layers import blockwise
from trainer.layers.blockwise import Places, Shaping, Visibility

_SCRIPT = """
import functools
import json
import jax
import jax.numpy as jnp
import numpy as np
from trainer.layers import Attention, Positions
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.blockwise import Places, Shaping, Visibility
from trainer.layers.ring import ring_attention, shares_positions
from trainer.layers.logit_cap import capped_attention
from trainer.mesh import Mesh

B, T, N, K, H = 2, 48, 4, 2, 8
mesh = Mesh(data=1, sequence=8).make(jax.devices())
q, k, v = (jax.random.normal(jax.random.key(i), (B, T, n, H)) for i, n in enumerate((N, K, K)))
segments = jnp.sort(jax.random.randint(jax.random.key(3), (B, T), 1, 4), axis=1)
packed = Positions.packed(segments.at[:, -5:].set(0))
row = jnp.arange(T)
back = row[:, None] - row
bias = jax.random.normal(jax.random.key(4), (N, 2 * T - 1))
prefix = (packed.index_BT < 4) & (packed.segment_BT > 0)
same = packed.segment_BT[:, :, None] == packed.segment_BT[:, None]
cases = {
    'full': (Places(row), Visibility(), Shaping(), jnp.ones((1, T, T), bool)),
    'causal': (Places(row), Visibility(True), Shaping(), (back >= 0)[None]),
    'window': (Places(row), Visibility(True, 9), Shaping(), ((back >= 0) & (back < 9))[None]),
    'one position': (Places(row), Visibility(True, 1), Shaping(), (back == 0)[None]),
    'packed': (
        Places(row, packed.segment_BT), Visibility(True), Shaping(), (back >= 0) & same
    ),
    'prefix, cap and bias': (
        Places(row, packed.segment_BT, prefix, packed.index_BT), Visibility(True),
        Shaping(jnp.float32(3.0), bias), ((back >= 0) | prefix[:, None]) & same,
    ),
}

def dense(case, q, k, v, shaping):
    at, _, _, mask = case
    added = None
    if shaping.bias_ND is not None:
        index = at.index_BT
        added = shaping.bias_ND[:, index[:, :, None] - index[:, None] + T - 1].swapaxes(0, 1)
    return capped_attention(q, k, v, shaping.cap, mask[:, None], bias=added)

def around(case, block, q, k, v, shaping):
    at, visible, _, _ = case
    with forward_context(ForwardContext(mesh=mesh)):
        assert shares_positions(T) and not shares_positions(T + 1)
        layer = Attention(N)
        return ring_attention(layer, q, k, v, at, at, visible, shaping, block=block)[0]

out = {}
for name, case in cases.items():
    results = []
    for block in (None, 4) if name != 'causal' else (None, 4, 512):
        run = functools.partial(dense, case) if block is None else functools.partial(
            around, case, block)
        def loss(*each, run=run):
            y = run(*each)
            return jnp.sum(jnp.sin(y)), y
        (_, y), gradients = jax.jit(
            jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)
        )(q, k, v, case[2])
        results.append([np.ravel(x).tolist() for x in jax.tree.leaves((y, gradients))])
    out[name] = results
print(json.dumps(out))
"""


@pytest.mark.slow
def test_values_and_gradients_are_those_over_all_pairs() -> None:
    for name, (wanted, *found) in json.loads(on_devices(_SCRIPT)).items():
        for each in found:
            for got, one in zip(each, wanted, strict=True):
                np.testing.assert_allclose(got, one, rtol=1e-5, atol=1e-5, err_msg=name)


_STAGES = """
import flax.linen as nn
import jax
import jax.numpy as jnp
from trainer.layers import (
    Alibi, Attention, FeedForward, Pipeline, Positions, Stack, TransformerBlock,
)
from trainer.layers.base import ForwardContext, forward_context
from trainer.mesh import Mesh

def stack(pipeline=None):
    block = TransformerBlock(Attention(2, position=Alibi(), logit_cap=5.0), FeedForward(16))
    return Stack([block], repeats=2, scan='always', pipeline=pipeline)

def loss(layer, mesh=None):
    def loss(variables, x):
        with forward_context(ForwardContext(mesh=mesh, training=True)):
            return jnp.sum(jnp.sin(layer.module().apply(variables, x, positions)))
    return jax.jit(jax.value_and_grad(loss))

x = jax.random.normal(jax.random.key(0), (4, 8, 8))
positions = Positions.packed(jnp.array([[1] * 3 + [2] * 5] * 4))
variables = nn.meta.unbox(stack().module().init(jax.random.key(0), x, positions))
mesh = Mesh(stage=2, data=2, sequence=2).make(jax.devices())
found = loss(stack(Pipeline(num_microbatches=2)), mesh)(variables, x)
wanted = loss(stack())(variables, x)
print(max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), found, wanted))))
"""


@pytest.mark.slow
def test_each_stage_of_a_pipeline_has_a_ring() -> None:
    assert float(on_devices(_STAGES)) < 1e-4


def _rows(first: int, last: int) -> Places:
    return Places(jnp.arange(first, last + 1))


@pytest.mark.parametrize(
    ('visible', 'queries', 'keys', 'wanted'),
    [
        (Visibility(), _rows(0, 3), _rows(4, 7), True),
        (Visibility(True), _rows(0, 3), _rows(4, 7), False),
        (Visibility(True), _rows(0, 3), _rows(3, 7), True),
        (Visibility(True, 2), _rows(4, 7), _rows(0, 3), True),
        (Visibility(True, 2), _rows(5, 7), _rows(0, 3), False),
        (Visibility(True), Places(jnp.array([0, -1])), _rows(1, 2), False),
    ],
)
def test_a_block_is_left_out_only_where_no_query_sees_a_key(
    visible: Visibility, queries: Places, keys: Places, wanted: bool
) -> None:
    assert bool(blockwise.may_see(queries, keys, visible)) == wanted


def test_keys_of_a_prefix_are_seen_from_before_them() -> None:
    keys = _rows(4, 7)._replace(prefix_BT=jnp.ones((1, 4), bool))
    assert blockwise.may_see(_rows(0, 3), keys, Visibility(True))


def test_blocks_of_keys_add_up_to_a_softmax() -> None:
    rng = np.random.default_rng(0)
    # The second block has the larger logits, and none of the first row is visible in it.
    q, k, v = (jnp.asarray(rng.normal(size=(1, n, 1, 4)), jnp.float32) for n in (3, 6, 6))
    k = k.at[:, 3:].multiply(20.0)
    at, sums = Places(jnp.array([2, 4, 5])), blockwise.no_keys(q[:, :, :, None], 4)
    with_keys = jax.jit(
        functools.partial(blockwise.with_keys, shaping=Shaping(), visible=Visibility(True))
    )
    for first in (0, 3):
        part, keys = slice(first, first + 3), Places(jnp.arange(first, first + 3))
        each = q[:, :, :, None], k[:, part], v[:, part], at, keys
        sums = with_keys(sums, *each)
    logits = np.einsum('bsnh,btnh->bnst', q, k)[0, 0] / 2
    past = np.array([2, 4, 5])[:, None] >= np.arange(6)
    weights = np.where(past, np.exp(logits - logits.max(-1, keepdims=True)), 0)
    wanted = weights / weights.sum(-1, keepdims=True) @ np.asarray(v)[0, :, 0]
    got = sums.out_BKGSV / sums.total_BKGS[..., None]
    np.testing.assert_allclose(got[0, 0, 0], wanted, rtol=1e-5, atol=1e-6)
