"""Activations that are components."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pyglove as pg
import pytest

from trainer.layers import (
    Activate,
    ActivationFunction,
    FeedForward,
    GatedFeedForward,
    LeakyRelu,
    Mlp,
    Stack,
)
from trainer.symbolic.component import numbers

X_BTD = jax.random.normal(jax.random.key(7), (2, 6, 8))


class LearnedSlope(ActivationFunction):
    """x where it is positive, else a learned slope times x (He et al. 2015)."""

    def of(self, x: jax.Array) -> jax.Array:
        slope = self.param('slope', (1,), ('norm',), nn.initializers.constant(0.25), decay=False)
        return jnp.where(x > 0, x, slope * x)


def result(layer: Any) -> tuple[Any, Any]:
    out, variables = layer.module().init_with_output({'params': jax.random.key(0)}, X_BTD)
    return out, nn.meta.unbox(variables.get('params', {}))


@pytest.mark.parametrize('kind', [FeedForward, GatedFeedForward])
def test_an_activation_of_a_user_has_parameters_at_its_path(kind: Any) -> None:
    out, params = result(kind(8, activation=LearnedSlope()))
    assert params['activation']['slope'].tolist() == [0.25]
    leaky, _ = result(kind(8, activation=LeakyRelu(0.25)))
    np.testing.assert_allclose(out, leaky, rtol=1e-6)


def test_a_scanned_stack_has_an_activation_in_each_layer() -> None:
    layers = [Mlp([8], 8, activation=LearnedSlope()) for _ in range(2)]
    _, params = result(Stack(layers, scan='always'))
    assert params['layers_0x2']['activation']['slope'].shape == (2, 1)


@pytest.mark.pax('Activations: 13')
def test_a_slope_is_a_number_and_a_candidate() -> None:
    assert numbers(FeedForward(8, activation=LeakyRelu(0.3))) == {'activation.slope': 0.3}
    plain, _ = result(Activate('leaky_relu'))
    np.testing.assert_array_equal(result(Activate(LeakyRelu()))[0], plain)
    space = Activate(pg.oneof(['relu', LeakyRelu(pg.floatv(0.01, 0.3))]))
    kinds = {str(each.activation) for each in pg.random_sample(space, 9, seed=1)}
    assert len(kinds) > 1
