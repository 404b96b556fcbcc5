"""Heads that predict later tokens: their loss, in training alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories import tiny
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    FutureTokens,
    Linear,
    Positions,
    RMSNorm,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.layers.base import AUX_LOSS, ForwardContext, forward_context
from trainer.program.step_functions import abstract_metrics
from trainer.state import unboxed
from trainer.symbolic.component import numbers
from trainer.symbolic.errors import UserError

IDS = jnp.array([[3, 1, 4, 0, 5, 9, 2], [2, 7, 1, 8, 2, 0, 0]])
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]])
WEIGHT = 0.25
LABEL_WEIGHTS = jnp.array([[1, 1, 0.5, 1, 1, 0, 1], [1, 1, 1, 1, 0, 0, 0]])
"""Of next tokens, one of which has the id 0 and counts."""


def block() -> TransformerBlock:
    return TransformerBlock(Attention(2), FeedForward(16))


def model(heads: int) -> TransformerLm:
    future = FutureTokens([block() for _ in range(heads)], WEIGHT) if heads else None
    return TransformerLm(Embedding(11, 8), Stack([block()]), future_tokens=future)


def params_of(made: TransformerLm) -> Any:
    return unboxed(made.module().init(jax.random.key(0), IDS)['params'])


def run(made: TransformerLm, params: Any, training: bool, positions: Any = None) -> Any:
    context = ForwardContext(training=training, label_weights=lambda: LABEL_WEIGHTS)
    with forward_context(context):
        return made.module().apply({'params': params}, IDS, positions, mutable=[AUX_LOSS])


@pytest.mark.parametrize('packed', [False, True])
def test_the_loss_is_that_of_tokens_further_ahead(packed: bool) -> None:
    made = model(2)
    params = params_of(made)
    positions = Positions.packed(SEGMENTS) if packed else Positions.unpacked(IDS.shape)
    _, left = run(made, params, True, positions)
    plain, bare = model(0), {name: params[name] for name in ('embedding', 'stack', 'final_norm')}
    x_BTD: Any = plain.module().apply({'params': bare}, IDS, positions, _method='hidden')
    each = []
    for head in range(2):
        own = {'params': params['future_tokens'][f'layers_{head}']}
        y_BTD: Any = block().module().apply(own, x_BTD, positions)
        normed: Any = RMSNorm().module().apply({'params': params['final_norm']}, y_BTD)
        logits = normed @ params['embedding']['table'].T
        log_probs = np.asarray(jax.nn.log_softmax(logits), np.float64)
        found = [
            (-log_probs[row, at, IDS[row, at + head + 2]], LABEL_WEIGHTS[row, at + head + 1])
            for row in range(2)
            for at in range(7 - head - 2)
            if not packed or SEGMENTS[row, at] == SEGMENTS[row, at + head + 2]
        ]
        losses, weights = np.array(found, np.float64).T
        each.append(np.average(losses, weights=weights))
    (loss,) = jax.tree.leaves(left[AUX_LOSS])
    assert loss == pytest.approx(WEIGHT * np.mean(each), rel=1e-4)


def test_evaluation_and_decoding_leave_the_heads_out() -> None:
    made = model(2)
    params = params_of(made)
    logits, left = run(made, params, training=False)
    bare = {name: x for name, x in params.items() if name != 'future_tokens'}
    wanted, _ = run(model(0), bare, training=False)
    np.testing.assert_array_equal(logits, wanted)
    assert not jax.tree.leaves(left)
    trained, _ = run(made, params, training=True)
    np.testing.assert_array_equal(logits, trained)


def test_other_parameters_are_drawn_as_without_heads() -> None:
    with_heads, without = params_of(model(1)), params_of(model(0))
    del with_heads['future_tokens']
    jax.tree.map(np.testing.assert_array_equal, with_heads, without)


def test_heads_must_be_there() -> None:
    with pytest.raises(ValueError, match='layers must not be empty'):
        FutureTokens([])


@pytest.mark.parametrize('scan', ['always', 'never'])
def test_stacks_and_heads_take_layers_of_activations_alone(scan: Any) -> None:
    made = TransformerLm(
        Embedding(11, 8),
        Stack([block(), Linear(8)], repeats=2, scan=scan),
        future_tokens=FutureTokens([Linear(8)]),
    )
    logits, left = run(made, params_of(made), training=True)
    assert logits.shape == (2, 7, 11)
    assert jnp.isfinite(sum(jax.tree.leaves(left)))


def test_a_head_that_changes_the_width_is_refused_by_its_path() -> None:
    made = TransformerLm(Embedding(11, 8), Stack([]), future_tokens=FutureTokens([Linear(4)]))
    with pytest.raises(UserError, match=r'^future_tokens.layers\[0\] \(Linear\): it makes'):
        params_of(made)


@pytest.mark.parametrize('weight', [0.0, 1.0])
def test_later_tokens_have_the_weights_of_the_labels_of_the_task(weight: float) -> None:
    made = tiny.experiment(task__model=tiny.model(future_tokens=FutureTokens([block()])))
    batch = made.train_input.get_next()
    # The later token of a pair has no weight as a label, or one of its own.
    batch['weights'][:] = 0
    batch['weights'][:, 4] = weight
    metrics, state, _ = abstract_metrics(made.task, made.train_input.element_spec())
    variables = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), state.variables)
    with forward_context(ForwardContext()):
        found = metrics(variables, batch, jax.random.key(0), numbers(made.task))
    assert (found['aux_loss'].value() > 0) == bool(weight)
