"""Norm policies, compared with NumPy."""

from collections.abc import Callable
from typing import Any, get_args

import jax
import numpy as np
import pytest

from tests.factories.parts import apply, init
from trainer.layers import (
    Attention,
    CrossAttention,
    DecoderBlock,
    Dropout,
    FeedForward,
    Identity,
    Layer,
    Memory,
    Positions,
    Residual,
    TransformerBlock,
)
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.norm_policy import NormPolicy

X_BTD = np.asarray(jax.random.normal(jax.random.key(7), (2, 6, 8)))
MEMORY = Memory(jax.random.normal(jax.random.key(8), (2, 6, 8)))

every = pytest.mark.parametrize('policy', get_args(NormPolicy))

Function = Callable[[Any], Any]


def normalized(weights: Any) -> Function:
    """The function of an RMSNorm."""
    scale = 1 + np.asarray(weights['scale'])
    return lambda x: x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + 1e-6) * scale


def fed_forward(weights: Any) -> Function:
    """The function of a FeedForward with rectifiers."""
    up, down = np.asarray(weights['up']), np.asarray(weights['down'])
    return lambda x: np.maximum(x @ up, 0) @ down


def connected(x: Any, branch: Function, weights: Any, name: str, policy: str) -> Any:
    """The residual connection, whose norm is called `name`."""
    norm = normalized(weights[name])
    if policy == 'pre':
        return x + branch(norm(x))
    if policy == 'post':
        return x + norm(branch(x))
    if policy == 'post_skip':
        return norm(x + branch(x))
    return x + normalized(weights[f'{name}_after'])(branch(norm(x)))


def scaled(layer: Any, *args: Any) -> Any:
    """Parameters with scales that differ from each other."""
    leaves, structure = jax.tree.flatten(init(layer, *args)['params'])
    keys = jax.random.split(jax.random.key(3), len(leaves))
    moved = [x + 0.2 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, moved)


@every
def test_a_residual_connection(policy: Any) -> None:
    layer = Residual(FeedForward(4, 'relu'), norm_policy=policy)
    params = scaled(layer, X_BTD)
    assert ('norm_after' in params) == (policy == 'primer_hybrid')
    wanted = connected(X_BTD, fed_forward(params['layer']), params, 'norm', policy)
    np.testing.assert_allclose(apply(layer, {'params': params}, X_BTD), wanted, atol=1e-5)


@pytest.mark.pax('Transformers: blocks, stacks')
@every
def test_a_block(policy: Any) -> None:
    layer = TransformerBlock(Attention(2), FeedForward(4, 'relu'), norm_policy=policy)
    params = scaled(layer, X_BTD)

    def attend(x: Any) -> Any:
        return np.asarray(apply(Attention(2), {'params': params['attention']}, x))

    wanted = connected(X_BTD, attend, params, 'attention_norm', policy)
    feed_forward = fed_forward(params['feed_forward'])
    wanted = connected(wanted, feed_forward, params, 'feed_forward_norm', policy)
    np.testing.assert_allclose(apply(layer, {'params': params}, X_BTD), wanted, atol=1e-5)


@every
def test_a_block_of_a_decoder(policy: Any) -> None:
    layer = DecoderBlock(
        attention=Attention(2),
        feed_forward=FeedForward(4, 'relu'),
        cross_attention=CrossAttention(2),
        norm_policy=policy,
    )
    positions = Positions.unpacked((2, 6))
    params = scaled(layer, X_BTD, positions, MEMORY)

    def attend(x: Any) -> Any:
        return np.asarray(apply(Attention(2), {'params': params['attention']}, x))

    def attend_to_memory(x: Any) -> Any:
        variables = {'params': params['cross_attention']}
        return np.asarray(apply(CrossAttention(2), variables, x, positions, MEMORY))

    wanted = connected(X_BTD, attend, params, 'attention_norm', policy)
    wanted = connected(wanted, attend_to_memory, params, 'cross_attention_norm', policy)
    feed_forward = fed_forward(params['feed_forward'])
    wanted = connected(wanted, feed_forward, params, 'feed_forward_norm', policy)
    found = apply(layer, {'params': params}, X_BTD, positions, MEMORY)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


class Same(Layer):
    """x -> x + 1, without parameters; unlike `Identity`, it is not left out."""

    def forward(self, x: Any, positions: Any = None) -> Any:
        return x + 1


@pytest.mark.parametrize('policy', ['pre', 'post', 'primer_hybrid'])
def test_residuals_have_dropout_after_their_normalization(policy: Any) -> None:
    layer = Residual(Same(), dropout=Dropout(0.5), norm_policy=policy)
    variables = init(layer, X_BTD)
    with forward_context(ForwardContext(training=True)):
        out = layer.module().apply(variables, X_BTD, rngs={'dropout': jax.random.key(1)})
    whole = Residual(Same(), norm_policy=policy)
    added = np.asarray(apply(whole, variables, X_BTD)) - X_BTD
    found = np.asarray(out) - X_BTD
    dropped = np.isclose(found, 0, atol=1e-6)
    assert 0.3 < dropped.mean() < 0.7
    np.testing.assert_allclose(found[~dropped], 2 * added[~dropped], rtol=1e-4, atol=1e-5)


@every
def test_around_identity_nothing_is_normalized(policy: Any) -> None:
    layer = Residual(Identity(), norm_policy=policy)
    np.testing.assert_array_equal(apply(layer, init(layer, X_BTD), X_BTD), X_BTD)
