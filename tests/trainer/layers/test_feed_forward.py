"""Products with parameters, compared with NumPy."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.parts import applied, new_params
from trainer.layers import FeedForward, GatedFeedForward, Linear, Mlp

X_BTD = np.asarray(jax.random.normal(jax.random.key(7), (2, 6, 8)))


def changed(layer: Any) -> Any:
    """New parameters of a layer, with biases that are not zero."""
    params = new_params(layer, X_BTD)
    return {name: np.asarray(value) + 0.1 for name, value in params.items()}


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


@pytest.mark.pax('Linears: `Linear`, `Bias`', 'ClassificationMLPModel')
@pytest.mark.parametrize(
    ('layer', 'by_hand'),
    [
        (Linear(3, bias='zeros'), lambda x, p: x @ p['kernel'] + p['bias']),
        (
            FeedForward(4, 'relu', bias='zeros'),
            lambda x, p: relu(x @ p['up'] + p['up_bias']) @ p['down'] + p['down_bias'],
        ),
        (
            GatedFeedForward(4, 'relu'),
            lambda x, p: (relu(x @ p['gate']) * (x @ p['up'])) @ p['down'],
        ),
        (
            Mlp([4], 3),
            lambda x, p: (
                relu(x @ p['hidden_0_kernel'] + p['hidden_0_bias']) @ p['output_kernel']
                + p['output_bias']
            ),
        ),
    ],
    ids=['linear', 'feed-forward', 'gated', 'perceptron'],
)
def test_products_are_those_of_numpy(layer: Any, by_hand: Any) -> None:
    params = changed(layer)
    found = applied(layer, params, X_BTD)
    np.testing.assert_allclose(found, by_hand(X_BTD, params), rtol=1e-4, atol=1e-5)
