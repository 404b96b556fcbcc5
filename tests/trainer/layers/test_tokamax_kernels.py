"""Kernels of tokamax compute as XLA does, and are refused where they cannot run."""

import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import new_params
from tests.factories.tiny import experiment
from trainer.layers import Attention, Experts, GatedFeedForward, Layer
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.positions import Positions
from trainer.layers.tokamax_kernels import require_kernels
from trainer.program.setup import compiled, localized
from trainer.symbolic.errors import UserError

X_BTD = jax.random.normal(jax.random.key(5), (2, 8, 16))
PACKED = Positions.packed(jnp.array([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 1, 1]]))
LAYERS: dict[str, Layer] = {
    'attention': Attention(4, num_kv_heads=2),
    'window': Attention(2, window=3),
    'gated unit': GatedFeedForward(24, activation='gelu'),
    'experts': Experts(4, 24),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', LAYERS)
def test_results_and_gradients_are_those_of_jax(name: str) -> None:
    pytest.importorskip('tokamax')
    layer = LAYERS[name].clone(deep=True)
    params = new_params(layer, X_BTD)

    def found(kernels: Any) -> Any:
        def loss(params: Any, x_BTD: Any) -> Any:
            with forward_context(ForwardContext(kernels=kernels)):
                y_BTD = layer.module().apply({'params': params}, x_BTD, PACKED)
            return jnp.sum(jnp.sin(y_BTD)), y_BTD

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, X_BTD)

    both = (jax.tree.leaves(found(each)) for each in ('jax', 'tokamax'))
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def mesh(platform: str, size: int) -> Any:
    return SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]), size=size)


def test_a_cpu_several_devices_and_a_missing_extra_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match=r"task\.kernels='tokamax' has kernels of GPUs and TPUs"):
        compiled(localized(experiment(task__kernels='tokamax')))
    with pytest.raises(UserError, match='one device, and XLA cannot divide them over the 8'):
        require_kernels(mesh('gpu', 8))
    monkeypatch.setitem(sys.modules, 'tokamax', None)
    with pytest.raises(UserError, match=r"needs tokamax: pip install 'paxtune\[kernels\]'"):
        require_kernels(mesh('gpu', 1))
