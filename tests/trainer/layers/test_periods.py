"""Layers that repeat themselves in a period are scanned, with the results of unrolled ones."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.tiny import experiment
from trainer.layers import (
    Attention,
    Dropout,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Layer,
    Residual,
    SharedWithPrevious,
    Stack,
    TransformerLm,
    per_layer,
    stacked,
)
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.periods import periods
from trainer.learner import Freeze, Learner
from trainer.program.setup import compiled, localized

X_BTD = jax.random.normal(jax.random.key(0), (2, 3, 8))


def local() -> Layer:
    return Residual(Attention(2, window=2))


def global_() -> Layer:
    return Residual(Attention(2))


def names(stack: Stack) -> list[str]:
    return [part.name for part in stack.storage()]


@given(st.lists(st.sampled_from('AB'), max_size=12))
def test_periods_put_a_sequence_together_again(kinds: list[str]) -> None:
    found, start = periods(kinds), 0
    again: list[str] = []
    for length, count in found:
        again += kinds[start : start + length] * count
        start += length * count
    assert again == kinds
    runs = sum(one != other for one, other in zip(kinds, [None, *kinds], strict=False))
    assert sum(length for length, _ in found) <= runs


def test_repeats_of_several_layers_are_one_period() -> None:
    stack = Stack([local(), global_()], repeats=9, scan='always')
    assert names(stack) == ['layers_0x9by2', 'layers_1x9by2']


def test_a_period_is_found_in_a_list_that_is_written_out() -> None:
    hybrid = [*(local() for _ in range(5)), global_()]
    again = [layer.clone(deep=True) for _ in range(4) for layer in hybrid]
    stack = Stack([Residual(FeedForward(4)), *again], scan='always')
    assert names(stack) == ['layers_0', *(f'layers_{at}x4by6' for at in range(1, 7))]


def test_short_periods_are_unrolled_on_cpu() -> None:
    assert names(Stack([local(), global_()], repeats=3)) == [f'layers_{at}' for at in range(6)]
    assert names(Stack([local(), global_()], repeats=4)) == ['layers_0x4by2', 'layers_1x4by2']


def mixed(scan: Any) -> Stack:
    """Two layers of other kinds and numbers, the second of which is applied twice."""
    return Stack(
        [
            layer
            for rate in (0.1, 0.5, 0.3)
            for layer in (
                Residual(FeedForward(4, dropout=Dropout(rate))),
                Residual(GatedFeedForward(4), dropout=Dropout(rate / 2)),
                SharedWithPrevious(),
            )
        ],
        scan=scan,
    )


@pytest.mark.pax('Repeat', '`repeat`')
@pytest.mark.slow
def test_a_scanned_period_is_the_unrolled_one() -> None:
    def init(scan: Any) -> Any:
        drawn: Any = jax.jit(mixed(scan).module().init)(jax.random.key(0), X_BTD)
        return nn.meta.unbox(drawn['params'])

    def loss(params: Any, scan: Any) -> Any:
        with forward_context(ForwardContext(training=True)):
            rngs = {'dropout': jax.random.key(1)}
            out: Any = mixed(scan).module().apply({'params': params}, X_BTD, rngs=rngs)
        return jnp.sum(out**2), out

    flat, packed = init('never'), init('always')
    assert list(packed) == ['layers_0x3by3', 'layers_1x3by3']
    jax.tree.map(np.testing.assert_array_equal, per_layer(packed), flat)
    jax.tree.map(np.testing.assert_array_equal, stacked(flat, mixed('always')), packed)
    gradients = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    wanted, y_BTD = gradients(flat, 'never')
    found, out_BTD = gradients(packed, 'always')
    np.testing.assert_allclose(out_BTD, y_BTD, rtol=1e-5, atol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3),
        per_layer(found),
        wanted,
    )


@pytest.mark.slow
def test_a_model_of_periods_trains_as_an_unrolled_one() -> None:
    def trained(scan: Any) -> Any:
        stack = Stack([Residual(Attention(2)), Residual(FeedForward(16))], repeats=2, scan=scan)
        freeze = Freeze([r'stack\.layers_[02]\..*\.query'])
        made = localized(
            experiment(
                task__model=TransformerLm(Embedding(256, 16), stack),
                task__learner=Learner(1e-2, freeze=freeze),
            )
        )
        program, values = compiled(made)
        key = program.random_key(0)
        state = program.init(key, values)
        for _ in range(3):
            state, _ = program.train_step(
                state, program.put(made.train_input.get_next()), key, values
            )
        return per_layer(jax.device_get(state.params))

    each = [trained(scan) for scan in ('always', 'never')]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *each)
