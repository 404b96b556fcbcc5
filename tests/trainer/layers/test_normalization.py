"""Normalizations equal their formulas, with scales that are not new."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import apply, init
from trainer.layers import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from trainer.layers.base import ForwardContext, forward_context
from trainer.symbolic.errors import UserError

X_BHWC = 3 + 2 * jax.random.normal(jax.random.key(0), (6, 4, 4, 3))


def train(layer: Any, variables: Any, x: Any, weights: Any = None) -> Any:
    """The result, and the variables after the step."""
    with forward_context(ForwardContext(training=True, example_weights=weights)):
        module: Any = layer.module()
        out, left = module.apply(variables, x, mutable=['non_trainable'])
    return out, variables | left


@pytest.mark.pax('Normalizations: Layer, RMS')
@pytest.mark.parametrize('is_centered', [False, True])
def test_norms_equal_their_formulas(is_centered: bool) -> None:
    layer = LayerNorm() if is_centered else RMSNorm()
    scale = jnp.array([0.5, -0.25, 2.0])
    moved = {'scale': scale, 'bias': 1 - scale} if is_centered else {'scale': scale}
    params = init(layer, X_BHWC)['params']
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, moved)
    mean = np.mean(X_BHWC, -1, keepdims=True) if is_centered else 0.0
    size = np.sqrt(np.mean(np.square(X_BHWC - mean), -1, keepdims=True))
    wanted = (X_BHWC - mean) / size * (1 + scale) + moved.get('bias', 0.0)
    np.testing.assert_allclose(
        apply(layer, {'params': moved}, X_BHWC), wanted, rtol=1e-3, atol=1e-4
    )


@pytest.mark.pax('Normalizations: Layer, RMS')
def test_training_normalizes_by_the_batch_and_evaluation_by_running_means() -> None:
    layer = BatchNorm(momentum=0.75)
    variables = init(layer, X_BHWC)
    out, after = train(layer, variables, X_BHWC)
    np.testing.assert_allclose(out.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(out.std((0, 1, 2)), 1, rtol=1e-4)
    mean, variance = X_BHWC.mean((0, 1, 2)), X_BHWC.var((0, 1, 2))
    state = after['non_trainable']
    np.testing.assert_allclose(state['mean'], 0.25 * mean, rtol=1e-5)
    np.testing.assert_allclose(state['variance'], 0.75 + 0.25 * variance, rtol=1e-5)
    for _ in range(60):
        _, after = train(layer, after, X_BHWC)
    evaluated = apply(layer, after, X_BHWC)
    np.testing.assert_allclose(evaluated, out, rtol=1e-3, atol=1e-4)


def test_padding_is_left_out_of_batch_statistics() -> None:
    layer = BatchNorm()
    variables = init(layer, X_BHWC)
    out, after = train(layer, variables, X_BHWC[:4])
    padded = X_BHWC.at[4:].set(1e4)
    # Only the sign of a weight matters.
    weights = jnp.array([1.0, 2.0, 0.5, 1.0, 0.0, 0.0])
    out_padded, after_padded = train(layer, variables, padded, weights)
    np.testing.assert_allclose(out_padded[:4], out, rtol=1e-5, atol=1e-5)
    jax.tree.map(np.testing.assert_allclose, after_padded, after)
    _, of_nothing = train(layer, variables, padded, jnp.zeros(6))
    jax.tree.map(np.testing.assert_array_equal, of_nothing, variables)


def test_weights_of_tokens_leave_tokens_out() -> None:
    layer, x_BTD = BatchNorm(), X_BHWC[:, 0]
    variables = init(layer, x_BTD)
    weights_BT = jnp.ones((6, 4)).at[:, 3].set(0)
    _, after = train(layer, variables, x_BTD[:, :3])
    _, after_padded = train(layer, variables, x_BTD, weights_BT)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), after_padded, after)
    with pytest.raises(ValueError, match='does not match the first axes of the input'):
        train(layer, variables, x_BTD, jnp.ones((3, 2)))


@pytest.mark.pax('Normalizations: Layer, RMS')
def test_groups_of_channels_are_normalized_in_each_example() -> None:
    x = jax.random.normal(jax.random.key(1), (2, 3, 3, 4)) * jnp.array([1.0, 2, 30, 40]) + 7
    layer = GroupNorm(num_groups=2)
    out = apply(layer, init(layer, x), x)
    groups = np.asarray(out).reshape(2, 9, 2, 2)
    np.testing.assert_allclose(groups.mean((1, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(groups.std((1, 3)), 1, rtol=1e-4)
    with pytest.raises(UserError, match=r'num_groups \(3\) must divide the 4 channels'):
        init(GroupNorm(num_groups=3), x)


@pytest.mark.parametrize('momentum', [-0.1, 1.0])
def test_impossible_momentum_is_refused(momentum: float) -> None:
    with pytest.raises(ValueError, match='momentum must lie in'):
        BatchNorm(momentum=momentum)
