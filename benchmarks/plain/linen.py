"""The same decoder as users of flax write it: linen modules and optax."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.plain.gpt import AdamW, Shape, turn


class Norm(nn.Module):
    """RMS normalization."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param('scale', nn.initializers.zeros, x.shape[-1:])
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)
        return (wide * (1 + scale)).astype(x.dtype)


class Block(nn.Module):
    """Attention and feed-forward, each with a residual connection."""

    shape: Shape
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dims, heads = self.shape.dims, self.shape.heads
        dense = functools.partial(nn.DenseGeneral, use_bias=False, dtype=self.dtype)
        y = Norm()(x)
        query, key, value = (
            dense((heads, dims // heads), name=name)(y) for name in ('query', 'key', 'value')
        )
        y = jax.nn.dot_product_attention(
            turn(query), turn(key), value, is_causal=True, implementation=self.shape.attention
        )
        x = x + dense(dims, axis=(-2, -1), name='output')(y)
        y = jax.nn.gelu(dense(4 * dims, name='up')(Norm()(x)))
        return x + dense(dims, name='down')(y)


class Decoder(nn.Module):
    """Token ids to logits."""

    shape: Shape
    dtype: Any

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        embed = nn.Embed(self.shape.vocab, self.shape.dims, dtype=self.dtype)
        x = embed(ids) * math.sqrt(self.shape.dims)
        for _ in range(self.shape.layers):
            x = Block(self.shape, self.dtype)(x)
        return embed.attend(Norm()(x)).astype(jnp.float32)


def begin(
    shape: Shape, optimizer: AdamW, dtype: Any, batch: Any
) -> tuple[Any, Callable[[Any, Any], tuple[Any, jax.Array]]]:
    """The state before the first step; (state, batch) -> (state, loss), which uses it up."""
    module = Decoder(shape, dtype)

    def no_norms(params: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

    adamw = optax.adamw(
        optimizer.learning_rate,
        optimizer.b1,
        optimizer.b2,
        optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
        mask=no_norms,
    )
    change = optax.chain(optax.clip_by_global_norm(optimizer.clip), adamw)
    params = jax.jit(module.init)(jax.random.key(0), batch['ids'])

    def loss(params: Any, batch: Any) -> jax.Array:
        logits: Any = module.apply(params, batch['ids'])
        each = optax.softmax_cross_entropy_with_integer_labels(logits, batch['labels'])
        weights = batch['weights'].astype(jnp.float32)
        return jnp.sum(each * weights) / jnp.sum(weights)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, inner = state
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, inner = change.update(gradients, inner, params)
        return (optax.apply_updates(params, updates), inner), value

    return (params, change.init(params)), step
