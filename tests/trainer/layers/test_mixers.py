"""Mixers, against formulas written from their papers, one position at a time."""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.attention import ATTENTION
from tests.factories.parts import apply, init
from tests.servers.processes import on_devices
from tests.trainer.layers import test_latent_attention
from tests.trainer.layers.test_depthwise import by_hand, drawn
from trainer.decoding import check_decoding
from trainer.layers import (
    LSTM,
    RGLRU,
    GatedDeltaNet,
    Layer,
    Mamba2,
    Positions,
    Residual,
    Stack,
    check_mixer,
    per_layer,
)
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.matrix_memory import Writes, scan_memory
from trainer.symbolic.errors import UserError

SEGMENTS = np.array([[1] * 12, [1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 0, 0]] * 2)
X_BTD = jax.random.normal(jax.random.key(3), (4, 12, 8))

Params = dict[str, Any]

MIXERS: dict[str, Layer] = {
    'rg-lru': RGLRU(2, width=12, bias='zeros'),
    'mamba-2': Mamba2(head_dim=4, state_dims=6, num_groups=2, chunk=4),
    'deltanet': GatedDeltaNet(2, head_dim=4, value_dim=6, chunk=4),
    'lstm': LSTM(6),
    'latent attention': test_latent_attention.COMPRESSED,
} | ATTENTION
mixers = pytest.mark.parametrize('name', MIXERS)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softplus(x: Any) -> Any:
    return np.log1p(np.exp(x))


def silu(x: Any) -> Any:
    return x * sigmoid(x)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def rms_norm(x: Any, scale: Any) -> Any:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * (1 + scale)


def projected(p: Params, name: str, x: Any) -> Any:
    return np.einsum('btd,dnh->btnh', x, p[name]) + p.get(f'{name}_bias', 0)


def convolved(p: Params, name: str, x: Any, segments: Any) -> Any:
    return by_hand(p[name]['kernel'], x, segments)


def over_positions(segments: Any, zero: Any, step: Callable[..., Any], *each: Any) -> Any:
    """Stacks the outputs of `step(state, *inputs) -> (state, output)`, anew in each segment."""
    rows = []
    for b in range(len(segments)):
        state, row = zero, []
        for t in range(segments.shape[1]):
            if t and segments[b, t] != segments[b, t - 1]:
                state = zero
            state, out = step(state, *(x[b, t] for x in each))
            row.append(out)
        rows.append(row)
    return np.array(rows)


def rg_lru(p: Params, x: Any, segments: Any) -> Any:
    u = convolved(p, 'convolution', projected(p, 'input', x), segments)

    def gate(name: str) -> Any:
        return sigmoid(np.einsum('btnh,nhk->btnk', u, p[name]) + p[f'{name}_bias'])

    def step(h: Any, u: Any, r: Any, i: Any) -> Any:
        a = sigmoid(-p['decay']) ** (8 * r)  # exp(-softplus(p)) = sigmoid(-p).
        h = a * h + np.sqrt(1 - a**2) * (i * u)
        return h, h

    gates = gate('recurrence_gate'), gate('input_gate')
    h = over_positions(segments, np.zeros(u.shape[2:]), step, u, *gates)
    out = gelu(projected(p, 'gate', x)) * h
    return np.einsum('btnh,nhd->btd', out, p['output']) + p['output_bias']


def mamba_2(p: Params, x: Any, segments: Any) -> Any:
    u = silu(convolved(p, 'input_convolution', projected(p, 'input', x), segments))
    heads = u.shape[2]

    def shared(name: str) -> Any:
        flat = silu(convolved(p, f'{name}_convolution', x @ p[name], segments))
        return np.repeat(flat.reshape(*x.shape[:2], 2, -1), heads // 2, axis=2)

    def step(s: Any, u: Any, key: Any, query: Any, dt: Any) -> Any:
        a = np.exp(-np.exp(p['log_rate']) * dt)
        s = a[:, None, None] * s + dt[:, None, None] * key[:, :, None] * u[:, None]
        return s, np.einsum('nk,nkv->nv', query, s) + p['skip'][:, None] * u

    dt = softplus(x @ p['step'] + p['step_bias'])
    zero = np.zeros((heads, 6, u.shape[3]))
    y = over_positions(segments, zero, step, u, shared('write'), shared('read'), dt)
    gated = (y * silu(projected(p, 'gate', x))).reshape(*x.shape[:2], -1)
    normal = rms_norm(gated, p['norm']['scale']).reshape(y.shape)
    return np.einsum('btnh,nhd->btd', normal, p['output'])


def deltanet(p: Params, x: Any, segments: Any) -> Any:
    def mixed(name: str) -> Any:
        return silu(convolved(p, f'{name}_convolution', projected(p, name, x), segments))

    def step(s: Any, q: Any, k: Any, v: Any, dt: Any, b: Any) -> Any:
        q, k = (z / np.sqrt((z**2).sum(-1, keepdims=True) + 1e-6) for z in (q, k))
        out = []
        for n, rate in enumerate(np.exp(p['log_rate'])):
            a, one = np.exp(-rate * dt[n]), np.eye(len(k[n]))
            # S (I - b k k^T) as in the paper, whose state is transposed.
            keep = a * (one - b[n] * np.outer(k[n], k[n]))
            out.append(keep @ s[n] + b[n] * np.outer(k[n], v[n]))
        s = np.array(out)
        return s, np.einsum('nk,nkv->nv', q, s) / np.sqrt(q.shape[-1])

    dt, b = softplus(x @ p['step'] + p['step_bias']), sigmoid(x @ p['strength'])
    q, k, v = mixed('query'), mixed('key'), mixed('value')
    zero = np.zeros((2, k.shape[3], v.shape[3]))
    read = over_positions(segments, zero, step, q, k, v, dt, b)
    out = rms_norm(read, p['norm']['scale']) * silu(projected(p, 'gate', x))
    return np.einsum('btnv,nvd->btd', out, p['output'])


def lstm(p: Params, x: Any, segments: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        gates = np.einsum('d,dgh->gh', x, p['input']) + np.einsum('d,dgh->gh', h, p['recurrent'])
        i, f, o, g = gates + p['bias']
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        return (h, c), h

    zero = np.zeros(p['output'].shape[0])
    return over_positions(segments, (zero, zero), step, x) @ p['output']


BY_HAND = {'rg-lru': rg_lru, 'mamba-2': mamba_2, 'deltanet': deltanet, 'lstm': lstm}
BY_HAND |= {'latent attention': test_latent_attention.by_hand}


def wide(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


@pytest.mark.pax('Recurrent and state-space layers')
@pytest.mark.parametrize('name', BY_HAND)
@pytest.mark.parametrize('packed', [True, False])
@pytest.mark.fast(5)
def test_results_are_those_of_the_recurrence(name: str, packed: bool) -> None:
    layer, segments = MIXERS[name], SEGMENTS if packed else np.ones_like(SEGMENTS)
    variables = drawn(init(layer, X_BTD))
    wanted = BY_HAND[name](wide(variables['params']), wide(X_BTD), segments)
    positions = Positions.packed(jnp.array(segments)) if packed else None
    is_token = segments != 0
    got = np.asarray(apply(layer, variables, X_BTD, positions))
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(got[is_token] / scale, wanted[is_token] / scale, atol=1e-5)


@mixers
@pytest.mark.fast(1)
def test_a_mixer_keeps_the_contract_of_mixers(name: str) -> None:
    check_mixer(MIXERS[name], X_BTD)


@mixers
@pytest.mark.fast(1)
def test_prompts_of_any_length_decode_as_whole_sequences(name: str) -> None:
    check_decoding(MIXERS[name], X_BTD, [3, 7, 1, 8])


@pytest.mark.slow
@mixers
def test_scanned_layers_are_unrolled_ones(name: str) -> None:
    def run(scan: str) -> Any:
        stack = Stack([Residual(MIXERS[name].clone(deep=True))], repeats=2, scan=scan)
        params = init(stack, X_BTD)['params']
        loss = jax.jit(lambda p: jnp.sum(apply(stack, {'params': p}, X_BTD) ** 2))
        return per_layer(params), loss(params), per_layer(jax.jit(jax.grad(loss))(params))

    scanned, unrolled = run('always'), run('never')
    for one, other in zip(jax.tree.leaves(scanned), jax.tree.leaves(unrolled), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


@pytest.mark.parametrize('name', ['rg-lru', 'mamba-2', 'deltanet'])
@pytest.mark.fast(1)
def test_long_rows_of_one_token_stay_finite(name: str) -> None:
    layer = MIXERS[name].clone(deep=True)
    x_BTD = jnp.broadcast_to(X_BTD[:, :1], (4, 256, 8))
    params = init(layer, x_BTD)['params']

    def loss(params: Any, dtype: Any) -> Any:
        with forward_context(ForwardContext(dtype=dtype)):
            out = apply(layer, {'params': params}, x_BTD.astype(dtype))
        return jnp.mean(out.astype(jnp.float32) ** 2)

    for dtype in (jnp.float32, jnp.bfloat16):
        value, gradients = jax.jit(jax.value_and_grad(lambda p, d=dtype: loss(p, d)))(params)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((value, gradients)))
    one = np.ones((4, 256), int)
    wanted = np.mean(BY_HAND[name](wide(params), wide(x_BTD), one) ** 2)
    np.testing.assert_allclose(loss(params, jnp.float32), wanted, rtol=1e-4)
    np.testing.assert_allclose(loss(params, jnp.bfloat16), wanted, rtol=0.05)


@pytest.mark.parametrize(
    ('layer', 'message'),
    [
        (RGLRU(3), '3 heads do not divide the width 8'),
        (GatedDeltaNet(3), '3 heads do not divide the width 8; set head_dim'),
        (Mamba2(), '1 groups of heads of size 64 do not divide 16 features'),
    ],
    ids=lambda each: type(each).__name__,
)
def test_heads_that_do_not_divide_the_width_are_refused(layer: Layer, message: str) -> None:
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda x: layer.module().init(jax.random.key(0), x), X_BTD)


def test_a_chunk_is_a_power_of_two() -> None:
    for make in (lambda: Mamba2(chunk=48), lambda: GatedDeltaNet(2, chunk=0)):
        with pytest.raises(ValueError, match='chunk must be a power of two'):
            make()


_SCRIPT = """
import json
import jax
import numpy as np
from tests.factories.parts import init
from tests.trainer.layers.test_mixers import MIXERS, SEGMENTS, X_BTD
from trainer.layers import Positions
from trainer.layers.base import ForwardContext, forward_context
from trainer.mesh import Mesh
import flax.linen as nn
import jax.numpy as jnp

meshes = {
    'one': Mesh(data=1).make(jax.devices()[:1]),
    'features': Mesh(data=2, fsdp=2, tensor=2).make(jax.devices()),
    'positions': Mesh(data=2, sequence=2, tensor=2).make(jax.devices()),
}
positions = Positions.packed(jnp.array(SEGMENTS))
out = {}
for name, layer in MIXERS.items():
    module = layer.module()
    boxed = module.init(jax.random.key(0), X_BTD)
    params = nn.meta.unbox(boxed)['params']
    is_box = lambda value: hasattr(value, 'names')
    for at, mesh in meshes.items():
        place = lambda box: jax.device_put(
            box.value, mesh.sharding(box.names, box.value.shape, name)
        )
        placed = jax.tree.map(place, boxed['params'], is_leaf=is_box)
        at_positions = mesh.sharding(('batch', 'length', None), X_BTD.shape, 'x')
        x = jax.device_put(X_BTD, at_positions)
        def loss(params, x):
            with forward_context(ForwardContext(mesh=mesh)):
                y = module.apply({'params': params}, x, positions)
            return jnp.sum(y ** 2), y
        (_, y), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(placed, x)
        flat = np.concatenate([np.ravel(jax.device_get(g)) for g in jax.tree.leaves(grads)])
        leaves = jax.tree.leaves(placed)
        parts = [leaf.addressable_shards[0].data.size / leaf.size for leaf in leaves]
        out[f'{name}, {at}'] = [np.ravel(jax.device_get(y)).tolist(), flat.tolist(), min(parts)]
print(json.dumps(out))
"""


@pytest.mark.slow(reason='compiles each mixer for three meshes of simulated devices')
def test_eight_devices_compute_as_one() -> None:
    found = json.loads(on_devices(_SCRIPT).splitlines()[-1])
    for name in MIXERS:
        one = found[f'{name}, one']
        for mesh in ('features', 'positions'):
            y, gradients, part = found[f'{name}, {mesh}']
            np.testing.assert_allclose(y, one[0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(gradients, one[1], rtol=1e-3, atol=1e-4)
            assert part <= 1 / 2, name


@pytest.mark.parametrize('corrects', [False, True])
def test_a_memory_that_forgets_all_is_exact_afterwards(corrects: bool) -> None:
    rng, shape = np.random.default_rng(0), (1, 32, 1, 4)
    query, key, value = rng.normal(size=(3, *shape))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    forget = np.full(shape[:3], -0.01)
    forget[:, [3, 5, 6]] = -1e5
    state, wanted = np.zeros((4, 4)), np.zeros(shape)
    for t in range(shape[1]):
        state *= np.exp(forget[0, t, 0])
        written = value[0, t, 0] - corrects * key[0, t, 0] @ state
        state = state + 0.5 * np.outer(key[0, t, 0], written)
        wanted[0, t, 0] = query[0, t, 0] @ state
    half = np.full(shape[:3], 0.5)
    writes = Writes(*(jnp.asarray(x, jnp.float32) for x in (query, key, value, forget, half)))
    given = Positions.unpacked(shape[:2]), jnp.zeros((1, 1, 4, 4)), 32, corrects
    read, end = scan_memory(writes, *given)
    np.testing.assert_allclose(read, wanted, atol=2e-6)
    np.testing.assert_allclose(end[0, 0], state, atol=2e-6)
