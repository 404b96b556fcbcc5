"""Inverted bottlenecks, against NumPy."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.parts import apply, init
from trainer.layers import (
    Chain,
    Conv2D,
    GlobalPool,
    GroupNorm,
    InvertedBottleneck,
    Linear,
    SharedWithPrevious,
    Stack,
)
from trainer.layers.base import ForwardContext, forward_context

X_BHWC = np.asarray(jax.random.normal(jax.random.key(0), (2, 5, 4, 3)))


def moved(variables: Any) -> Any:
    """Random variables with positive variances."""
    leaves, structure = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(3), len(leaves))
    changes = [0.3 * abs(jax.random.normal(k, x.shape)) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, [x + d for x, d in zip(leaves, changes, strict=True)])


def depthwise(x: Any, kernel: Any, stride: int) -> Any:
    """A depthwise convolution with zero padding."""
    size = len(kernel)
    shape = [-(-length // stride) for length in x.shape[1:3]]
    missing = [
        max((n - 1) * stride + size - length, 0)
        for n, length in zip(shape, x.shape[1:3], strict=True)
    ]
    around = [(0, 0), *((m // 2, m - m // 2) for m in missing), (0, 0)]
    padded, out = np.pad(x, around), np.zeros((len(x), *shape, x.shape[-1]))
    for i in range(shape[0]):
        for j in range(shape[1]):
            top, left = i * stride, j * stride
            patch = padded[:, top : top + size, left : left + size]
            out[:, i, j] = np.sum(patch * kernel[:, :, 0], axis=(1, 2))
    return out


def reference(x: Any, variables: Any, stride: int) -> Any:
    """The result without the skip connection."""
    params, state = variables['params'], variables['non_trainable']

    def normalized(x: Any, name: str) -> Any:
        weights, seen = params[f'{name}_norm'], state[f'{name}_norm']
        x = (x - seen['mean']) / np.sqrt(seen['variance'] + 1e-6)
        return np.asarray(x * (1 + weights['scale']) + weights['bias'])

    if 'expand_kernel' in params:
        x = np.clip(normalized(x @ np.asarray(params['expand_kernel'])[0, 0], 'expand'), 0, 6)
    x = depthwise(x, np.asarray(params['depthwise_kernel']), stride)
    x = np.clip(normalized(x, 'depthwise'), 0, 6)
    return normalized(x @ np.asarray(params['project_kernel'])[0, 0], 'project')


@pytest.mark.parametrize(
    ('fields', 'hidden', 'is_added'),
    [
        ({'channels': 3}, 18, True),
        ({'channels': 3, 'expansion': 2.5, 'kernel_size': 2}, 8, True),
        ({'channels': 3, 'expansion': 1.0}, 3, True),
        ({'channels': 3, 'expansion': 2.0, 'skip': False}, 6, False),
        ({'channels': 4, 'expansion': 2.0}, 6, False),
        ({'channels': 3, 'expansion': 2.0, 'kernel_size': 5, 'stride': 2}, 6, False),
    ],
)
@pytest.mark.fast(1)
def test_inverted_bottlenecks_equal_their_formula(
    fields: dict[str, Any], hidden: int, is_added: bool
) -> None:
    layer = InvertedBottleneck(**fields)
    variables = moved(init(layer, X_BHWC))
    kernels = variables['params']
    assert kernels['depthwise_kernel'].shape == (layer.kernel_size, layer.kernel_size, 1, hidden)
    assert ('expand_kernel' in kernels) == (layer.expansion != 1)
    wanted = reference(X_BHWC, variables, layer.stride) + (X_BHWC if is_added else 0)
    np.testing.assert_allclose(apply(layer, variables, X_BHWC), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_network_of_them_trains_in_a_chain_and_in_a_stack() -> None:
    block = InvertedBottleneck(channels=8, expansion=2.0, norm=GroupNorm(num_groups=2))
    stack = Stack([block, SharedWithPrevious()], repeats=2, scan='always')
    first = InvertedBottleneck(channels=8, stride=2)
    model = Chain([Conv2D(4), first, stack, GlobalPool(), Linear(10)])
    variables = init(model, X_BHWC)
    with forward_context(ForwardContext(training=True)):
        out, left = model.module().apply(variables, X_BHWC, mutable=['non_trainable'])
    assert out.shape == (2, 10)
    assert np.isfinite(out).all()
    assert list(left['non_trainable']) == ['layers_1']


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'channels': 0}, 'channels must be at least 1'),
        ({'channels': 3, 'expansion': 0.0}, 'expansion must be above 0'),
        ({'channels': 3, 'stride': 0}, 'stride must be at least 1'),
    ],
)
def test_impossible_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InvertedBottleneck(**fields)
