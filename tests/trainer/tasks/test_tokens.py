"""Language models of all types, and pairs of sequences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance.layer_examples import encoder_decoder
from tests.factories.parts import apply, init
from tests.factories.tiny import CountingInput, model
from trainer.layers import Attention, Embedding, FeedForward, Stack, TransformerBlock, TransformerLm
from trainer.layers.positions import Positions
from trainer.learner import Learner
from trainer.measures import AccuracyStrict
from trainer.metrics import Count, Totals
from trainer.symbolic.errors import UserError
from trainer.tasks import LanguageModelTask, SequenceTask

LEARNER = Learner(learning_rate=0.01)


def language_model(mask: str = 'causal', **fields: Any) -> LanguageModelTask:
    layer = TransformerBlock(Attention(2, mask=mask), FeedForward(8))
    return LanguageModelTask(
        TransformerLm(Embedding(6, 8), Stack([layer])), LEARNER.clone(deep=True), **fields
    )


def values(metrics: Any) -> dict[str, float]:
    totals = Totals()
    totals.add(metrics)
    return totals.values()


@pytest.mark.pax('log_pplx', 'fraction_of_correct_next_step_preds', 'num_predictions', 'models.py')
def test_metrics_of_tokens() -> None:
    labels = jnp.array([[1, 2, 3, 0], [4, 5, 0, 0]])
    said = jnp.array([[1, 2, 4, 5], [4, 5, 1, 1]])
    logits = 4.0 * jax.nn.one_hot(said, 6)
    weights = jnp.array([[1.0, 1, 1, 0], [1, 1, 0, 0]])
    task = language_model(metrics=[AccuracyStrict()])
    batch = {'ids': labels, 'labels': labels, 'weights': weights}
    metrics = task.measure(logits, batch)
    assert isinstance(metrics['num_predictions'], Count)
    got = values(metrics)
    log_z = np.log(np.exp(4) + 5)
    assert got == {
        'loss': pytest.approx(log_z - 4 * 4 / 5, rel=1e-5),
        'log_pplx': pytest.approx(log_z - 4 * 4 / 5, rel=1e-5),
        'accuracy': pytest.approx(0.8),
        'num_predictions': 5,
        'acc_strict': 0.5,
    }
    packed = batch | {'segment_ids': jnp.array([[1, 1, 2, 0], [1, 2, 0, 0]])}
    assert values(task.measure(logits, packed))['acc_strict'] == 0.75


@pytest.mark.pax('TransformerLm')
@pytest.mark.slow
def test_visible_tokens_of_a_prefix_model_are_no_predictions() -> None:
    task = language_model(model_type='prefix')
    ids = jnp.array([[0, 1, 2, 3, 4, 5]])
    batch = {
        'ids': ids, 'labels': jnp.array([[1, 2, 3, 4, 5, 1]]), 'weights': jnp.ones((1, 6)),
        'inputs_indicator': jnp.array([[1, 1, 1, 0, 0, 0]]),
    }  # fmt: skip
    logits = jnp.zeros((1, 6, 6))
    # The label at the last position of the prefix is the first token after it.
    assert values(task.measure(logits, batch))['num_predictions'] == 4
    segments = {'segment_ids': jnp.array([[1, 1, 2, 2, 2, 2]])}
    packed = batch | segments | {'segment_pos': jnp.array([[0, 1, 0, 1, 2, 3]])}
    assert values(task.measure(logits, packed))['num_predictions'] == 5
    # No label with weight is visible at its position.
    variables = init(task.model, *task.model_inputs(batch))

    def changed_by(position: int) -> Any:
        other = batch | {'ids': ids.at[0, position].set(3 - int(ids[0, position]) % 2)}
        got = [apply(task.model, variables, *task.model_inputs(each)) for each in (batch, other)]
        return np.any(np.abs(got[0] - got[1]) > 1e-6, axis=-1)[0].tolist()

    assert changed_by(2) == [True] * 6
    assert changed_by(4) == [False] * 4 + [True] * 2


@pytest.mark.pax('TransformerLm')
def test_the_type_of_a_model_must_be_that_of_its_attention() -> None:
    with pytest.raises(ValueError, match=r"model_type 'bidirectional': its attention .*'full'"):
        language_model(model_type='bidirectional')
    with pytest.raises(ValueError, match="model_type 'causal': its attention must have"):
        language_model('full')
    task = language_model('full', model_type='bidirectional')
    ids = jnp.array([[1, 2, 3]])
    variables = init(task.model, ids)
    got = [
        apply(task.model, variables, *task.model_inputs({'ids': each}))
        for each in (ids, ids.at[0, 2].set(5))
    ]
    assert not np.allclose(got[0][0, 0], got[1][0, 0], atol=1e-6)


def test_padding_is_invisible_to_a_bidirectional_model() -> None:
    task = language_model('full', model_type='bidirectional')
    variables = init(task.model, jnp.ones((1, 4), int))

    def log_pplx(length: int, **more: Any) -> float:
        ids, weights = np.zeros((1, length), int), np.zeros((1, length), np.float32)
        ids[0, :4], weights[0, [1, 3]] = [3, 0, 4, 0], 1  # Here 0 is a mask, too.
        batch = {'ids': ids, 'labels': (ids + 1) % 6, 'weights': weights}
        batch = jax.tree.map(
            jnp.asarray, batch | {name: make(length) for name, make in more.items()}
        )
        outputs = apply(task.model, variables, *task.model_inputs(batch))
        return values(task.measure(outputs, batch))['log_pplx']

    def segments(length: int) -> Any:
        return (np.arange(length)[None] < 4).astype(np.int32)

    wanted = log_pplx(4)
    for length in (5, 9):
        assert log_pplx(length) == pytest.approx(wanted, rel=1e-5)
        assert log_pplx(length, segment_ids=segments) == pytest.approx(wanted, rel=1e-5)


def test_a_bidirectional_model_needs_to_know_the_padding() -> None:
    task = language_model('full', model_type='bidirectional')
    with pytest.raises(UserError, match='no `segment_ids`, by which padding is known'):
        task.check_input(CountingInput(batch_size=2))


def test_a_prefix_model_needs_to_know_the_prefix() -> None:
    task = LanguageModelTask(model(), LEARNER.clone(deep=True), model_type='prefix')
    with pytest.raises(UserError, match='no `inputs_indicator`'):
        task.check_input(CountingInput(batch_size=2))


def pairs(**more: Any) -> dict[str, Any]:
    ids = jnp.array([[1, 2, 3, 0], [4, 5, 0, 0]])
    return {
        'encoder_ids': ids[:, :3], 'ids': ids, 'labels': ids,
        'weights': (ids > 0).astype(jnp.float32), **more,
    }  # fmt: skip


@pytest.mark.pax('TransformerEncoderDecoder')
def test_the_features_of_pairs() -> None:
    task = SequenceTask(model=encoder_decoder(), learner=LEARNER.clone(deep=True))
    inputs: Any = task.model_inputs(pairs(encoder_weights=jnp.ones((2, 3))))
    source, ids, positions = inputs
    assert source.shape == (2, 3) and ids.shape == (2, 4)
    assert positions.segment_BT.tolist() == [[1, 1, 1]] * 2
    inputs = task.model_inputs(pairs())
    assert inputs[-1].segment_BT is None
    packed = pairs(
        segment_ids=jnp.ones((2, 4), int), segment_pos=jnp.ones((2, 4), int),
        encoder_segment_ids=jnp.ones((2, 3), int), encoder_segment_pos=jnp.ones((2, 3), int),
    )  # fmt: skip
    *_, source_positions, target_positions = task.model_inputs(packed)
    assert isinstance(source_positions, Positions) and isinstance(target_positions, Positions)
    assert task.num_tokens(packed) == 6 + 8
    logits = 9.0 * jax.nn.one_hot(packed['labels'], 6)
    got = values(task.measure(logits, packed))
    assert got['accuracy'] == got['acc_strict'] == 1
    assert got['num_predictions'] == 5


@pytest.mark.parametrize(
    ('packed', 'missing'), [(False, 'encoder_weights'), (True, 'encoder_segment_ids')]
)
def test_a_source_without_weights_is_refused(packed: bool, missing: str) -> None:
    class Pairs(CountingInput):
        more: list[str] = []

        def element_spec(self) -> Any:
            spec = super().element_spec()
            names = ['encoder_ids', *self.more, *(['segment_ids'] if packed else [])]
            return spec | dict.fromkeys(names, spec['ids'])

    task = SequenceTask(model=encoder_decoder(), learner=LEARNER.clone(deep=True))
    with pytest.raises(UserError, match=f'no `{missing}`'):
        task.check_input(Pairs(batch_size=2))
    task.check_input(Pairs(batch_size=2, more=[missing]))


@pytest.mark.slow
def test_padding_of_the_source_changes_nothing() -> None:
    task = SequenceTask(model=encoder_decoder(), learner=LEARNER.clone(deep=True))
    there = jnp.array([[1, 1, 0], [1, 0, 0]])
    short = pairs(encoder_weights=there)
    other = {**short, 'encoder_ids': (short['encoder_ids'] + 1 - there) % 6}
    variables = init(task.model, *task.model_inputs(short))
    got = [apply(task.model, variables, *task.model_inputs(each)) for each in (short, other)]
    assert not np.array_equal(short['encoder_ids'], other['encoder_ids'])
    np.testing.assert_allclose(got[0], got[1], rtol=1e-5, atol=1e-6)
