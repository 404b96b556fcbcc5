"""A decoder in plain JAX, with AdamW: the model of `trainer.layers.TransformerLm`, by hand.

Parameters are nested dicts as the trainer stores them, one entry a layer. Nothing of the trainer is
used here.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

Params = dict[str, Any]


class Shape(NamedTuple):
    """Size of a model.

    Attributes:
        layers: how many blocks.
        dims: the width of the model; heads are `dims / heads` wide.
        heads: of each attention.
        vocab: token ids.
        attention: implementation of the attention product, as JAX names it.
    """

    layers: int
    dims: int
    heads: int
    vocab: int
    attention: Literal['xla', 'cudnn'] = 'xla'


class AdamW(NamedTuple):
    """AdamW after clipping by the global norm, at a constant learning rate."""

    learning_rate: float
    b1: float = 0.9
    b2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0


class State(NamedTuple):
    """State that a step changes."""

    step: jax.Array
    params: Params
    mean: Params
    square: Params


def init(shape: Shape, key: jax.Array) -> Params:
    """Parameters at random, float32."""
    dims, width = shape.dims, shape.dims // shape.heads
    keys = iter(jax.random.split(key, 6 * shape.layers + 1))

    def matrix(*sizes: int, fan_in: int) -> jax.Array:
        return jax.random.normal(next(keys), sizes) / math.sqrt(fan_in)

    def layer() -> Params:
        heads = (dims, shape.heads, width)
        return {
            'attention_norm': {'scale': jnp.zeros(dims)},
            'attention': {
                **{name: matrix(*heads, fan_in=dims) for name in ('query', 'key', 'value')},
                'output': matrix(shape.heads, width, dims, fan_in=dims),
            },
            'feed_forward_norm': {'scale': jnp.zeros(dims)},
            'feed_forward': {
                'up': matrix(dims, 4 * dims, fan_in=dims),
                'down': matrix(4 * dims, dims, fan_in=4 * dims),
            },
        }

    return {
        'embedding': {'table': matrix(shape.vocab, dims, fan_in=dims)},
        'stack': {f'layers_{index}': layer() for index in range(shape.layers)},
        'final_norm': {'scale': jnp.zeros(dims)},
    }


def begin(params: Params) -> State:
    """The state before the first step."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return State(jnp.zeros((), jnp.int32), params, zeros, jax.tree.map(jnp.copy, zeros))


def make_step(
    shape: Shape, optimizer: AdamW, dtype: Any = jnp.float32
) -> Callable[[State, Any], tuple[State, jax.Array]]:
    """(state, batch) -> (state, loss), compiled when it is first called. The state is used up."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: State, batch: Any) -> tuple[State, jax.Array]:
        mean_loss = functools.partial(loss, shape=shape, batch=batch, dtype=dtype)
        value, gradients = jax.value_and_grad(mean_loss)(state.params)
        return update(optimizer, state, gradients), value

    return step


def loss(params: Params, *, shape: Shape, batch: Any, dtype: Any) -> jax.Array:
    """The mean cross-entropy of the labels, in nats."""
    logits = forward(params, batch['ids'], shape, dtype)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    of_label = jnp.take_along_axis(logits, batch['labels'][..., None], axis=-1)[..., 0]
    weights = batch['weights'].astype(jnp.float32)
    return jnp.sum((log_z - of_label) * weights) / jnp.sum(weights)


def forward(params: Params, ids: jax.Array, shape: Shape, dtype: Any) -> jax.Array:
    """Logits [B, T, V] in float32."""
    # Float32 until here, so that the gradients of a row add up.
    rows = jnp.take(params['embedding']['table'], ids, axis=0)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    table = params['embedding']['table']
    x = rows.astype(dtype) * math.sqrt(shape.dims)
    for index in range(shape.layers):
        layer = params['stack'][f'layers_{index}']
        normed = _norm(x, layer['attention_norm']['scale'])
        x = x + _attend(layer['attention'], normed, shape.attention)
        hidden = _norm(x, layer['feed_forward_norm']['scale']) @ layer['feed_forward']['up']
        x = x + jax.nn.gelu(hidden) @ layer['feed_forward']['down']
    x = _norm(x, params['final_norm']['scale'])
    return jnp.einsum('btd,vd->btv', x, table, preferred_element_type=jnp.float32)


def update(optimizer: AdamW, state: State, gradients: Params) -> State:
    """One step of the optimizer."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradients)))
    scale = jnp.minimum(1.0, optimizer.clip / jnp.maximum(norm, 1e-12))
    gradients = jax.tree.map(lambda g: g * scale, gradients)
    step = state.step + 1

    def average(decay: float, old: Params, new: Params) -> Params:
        return jax.tree.map(lambda o, n: decay * o + (1 - decay) * n, old, new)

    mean = average(optimizer.b1, state.mean, gradients)
    square = average(optimizer.b2, state.square, jax.tree.map(jnp.square, gradients))

    def changed(p: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        m = m / (1 - optimizer.b1**step)
        s = s / (1 - optimizer.b2**step)
        decay = optimizer.weight_decay if p.ndim > 1 else 0.0
        return p - optimizer.learning_rate * (m / (jnp.sqrt(s) + optimizer.epsilon) + decay * p)

    return State(step, jax.tree.map(changed, state.params, mean, square), mean, square)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)
    return (wide * (1 + scale.astype(jnp.float32))).astype(x.dtype)


def _attend(params: Params, x: jax.Array, implementation: Literal['xla', 'cudnn']) -> jax.Array:
    query, key, value = (
        jnp.einsum('btd,dnh->btnh', x, params[name]) for name in ('query', 'key', 'value')
    )
    out = jax.nn.dot_product_attention(
        turn(query), turn(key), value, is_causal=True, implementation=implementation
    )
    return jnp.einsum('btnh,nhd->btd', out, params['output'])


def turn(x: jax.Array) -> jax.Array:
    """Rotary positions, on halves."""
    half, length = x.shape[-1] // 2, x.shape[1]
    frequency = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(length, dtype=jnp.float32)[:, None, None] * frequency
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
