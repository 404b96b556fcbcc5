"""The implementation of attention, up to the call of its kernel: no GPU is there to run it."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.trainer.layers.single import apply, init
from trainer.layers import Attention
from trainer.layers.base import ForwardContext, forward_context
from trainer.symbolic.errors import UserError

_FUSED = Attention(2, implementation='cudnn')
_X_BTD = jnp.ones((1, 8, 16))
_KERNEL = jax.nn.dot_product_attention


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, str]]:
    """Calls of the kernel, (implementation, dtype) each, as on a GPU; XLA's computes."""
    calls = []

    def kernel(query: Any, *args: Any, implementation: str | None, **kwargs: Any) -> Any:
        calls.append((implementation, str(query.dtype)))
        return _KERNEL(query, *args, **kwargs)

    monkeypatch.setattr(jax.nn, 'dot_product_attention', kernel)
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    return calls


def test_cudnn_attends_in_bfloat16_once_parameters_are_initialized(
    on_a_gpu: list[tuple[str | None, str]],
) -> None:
    variables = init(_FUSED, _X_BTD)
    with forward_context(ForwardContext(dtype=jnp.bfloat16)):
        apply(_FUSED, variables, _X_BTD.astype(jnp.bfloat16))
    assert on_a_gpu == [(None, 'float32'), ('cudnn', 'bfloat16')]


def test_cudnn_is_refused_in_float32(on_a_gpu: list[tuple[str | None, str]]) -> None:
    with pytest.raises(UserError, match=r"bfloat16 alone: set task\.fprop_dtype='bfloat16'"):
        apply(_FUSED, init(_FUSED, _X_BTD), _X_BTD)


def test_cudnn_is_refused_without_a_gpu() -> None:
    with pytest.raises(UserError, match=r"implementation='cudnn' needs a GPU.*a cpu: use"):
        apply(_FUSED, init(_FUSED, _X_BTD), _X_BTD)
