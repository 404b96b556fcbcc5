"""Masked language models: the tokens that are hidden, and the loss of them alone."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.runs import final_state, measured, without_speed
from tests.factories.tiny import experiment
from trainer.inputs import Arrays, ArraysInput, arrays_of
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    FutureTokens,
    Linear,
    Positions,
    SequencePool,
    Stack,
    TextClassifier,
    TransformerBlock,
    TransformerLm,
)
from trainer.layers.base import ForwardContext
from trainer.learner import Learner
from trainer.loop.train_loop import run
from trainer.program.setup import compiled, localized
from trainer.program.step_functions import init_variables
from trainer.program.train_step import forward
from trainer.state import unboxed
from trainer.symbolic.errors import UserError
from trainer.tasks import (
    ClassificationTask,
    LanguageModelTask,
    MaskedLanguageModelTask,
    RegressionTask,
)

VOCAB, MASK, SPACES = 65, 64, list(range(1, 13))
IDS = np.random.default_rng(0).integers(1, MASK, (64, 128)).astype(np.int32)
IDS[:, 100:] = 0
IDS[7] = 0


def model(vocab_size: int = VOCAB) -> TransformerLm:
    block = TransformerBlock(Attention(2, mask='full'), FeedForward(16))
    return TransformerLm(Embedding(vocab_size, 8), Stack([block]))


def task(**fields: Any) -> MaskedLanguageModelTask:
    return MaskedLanguageModelTask(model=model(), learner=Learner(1e-2), mask_id=MASK, **fields)


def prepared(ids: np.ndarray = IDS, seed: int = 0, **fields: Any) -> dict[str, np.ndarray]:
    batch: Any = {'ids': jnp.asarray(ids), 'labels': jnp.zeros_like(ids)}
    found = jax.jit(task(**fields).prepared)(batch, jax.random.key(seed))
    return {name: np.asarray(x) for name, x in found.items()}


def test_tokens_are_hidden_in_the_shares_of_bert() -> None:
    found = prepared()
    chosen, text = found['weights'] > 0, IDS > 0
    assert not chosen[~text].any()
    np.testing.assert_array_equal(found['labels'], IDS)
    np.testing.assert_array_equal(found['ids'][~chosen], IDS[~chosen])
    assert chosen[text].mean() == pytest.approx(0.15, abs=0.015)
    hidden, labels = found['ids'][chosen], IDS[chosen]
    assert (hidden == MASK).mean() == pytest.approx(0.8, abs=0.05)
    # One random token in 63 is the one that it replaces.
    assert (hidden == labels).mean() == pytest.approx(0.1, abs=0.04)
    others = hidden[(hidden != MASK) & (hidden != labels)]
    assert others.min() >= 1 and len(set(others.tolist())) > 30


def test_a_row_is_hidden_alike_in_any_batch_and_otherwise_in_each_step() -> None:
    once, again, other = prepared(), prepared(IDS[::-1]), prepared(seed=1)
    np.testing.assert_array_equal(once['ids'], again['ids'][::-1])
    assert (once['ids'] != other['ids']).any()
    assert (once['weights'][0] != once['weights'][1]).any()


def test_special_ids_are_not_hidden_and_id_0_may_be_a_token() -> None:
    ids = IDS.copy()
    ids[0], ids[1] = 0, 7
    batch: Any = {'ids': jnp.asarray(ids), 'weights': np.ones_like(ids, np.float32)}
    found = task(special_ids=[7]).prepared(batch, jax.random.key(0))
    assert found['weights'][0].any() and not found['weights'][1].any()


def test_all_tokens_of_a_word_are_chosen_together() -> None:
    found = prepared(word_separators=SPACES)
    chosen, is_space = found['weights'] > 0, np.isin(IDS, SPACES)
    inside = ~is_space & (IDS > 0)
    pairs = inside[:, 1:] & inside[:, :-1]
    np.testing.assert_array_equal(chosen[:, 1:][pairs], chosen[:, :-1][pairs])
    assert chosen[IDS > 0].mean() == pytest.approx(0.15, abs=0.05)
    # Separators are words of their own.
    assert chosen[is_space].mean() == pytest.approx(0.15, abs=0.05)


def test_rows_of_padding_have_no_labels() -> None:
    weights = np.ones_like(IDS, np.float32)
    weights[3] = 0
    batch: Any = {'ids': jnp.asarray(IDS), 'labels': jnp.asarray(IDS), 'weights': weights}
    found = task().prepared(batch, jax.random.key(0))
    assert not found['weights'][3].any() and found['weights'][4].any()


def test_weights_of_examples_mark_no_token() -> None:
    batch = {'ids': jnp.asarray(IDS), 'weights': jnp.ones(len(IDS)).at[3].set(0)}
    found = task().prepared(batch, jax.random.key(0))
    assert not found['weights'][3].any() and found['weights'][4].any()
    np.testing.assert_array_equal(found['segment_ids'], IDS > 0)


def test_the_loss_is_the_mean_of_hidden_tokens() -> None:
    made, batch = task(), {'ids': jnp.asarray(IDS[:4]), 'labels': jnp.zeros((4, 128), jnp.int32)}
    spec = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
    variables = unboxed(init_variables(made, spec, jax.random.key(1)))
    metrics, _ = jax.jit(lambda v, b: forward(made, v, b, {}, ForwardContext()))(variables, batch)
    seen = made.prepared(batch, jax.random.key(0))
    logits: Any = made.model.module().apply(
        variables, seen['ids'], Positions.packed(seen['segment_ids'])
    )
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    chosen = np.argwhere(np.asarray(seen['weights']) > 0)
    wanted = np.mean([-log_probs[row, at, IDS[row, at]] for row, at in chosen])
    assert metrics['loss'].value() == pytest.approx(wanted, rel=1e-5)
    assert metrics['num_predictions'].value() == len(chosen)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'mask_id': VOCAB}, 'mask_id must lie between 1 and 64'),
        ({'model': model(vocab_size=2)}, 'a vocabulary of 2: padding, mask_id and a token'),
        ({'mask_rate': 0.0}, 'mask_rate'),
        ({'random_share': 0.6, 'kept_share': 0.6}, 'add up to at most 1'),
    ],
)
def test_impossible_fields_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MaskedLanguageModelTask(
            **({'model': model(), 'learner': Learner(0.1), 'mask_id': 1} | fields)
        )


def test_a_masked_model_scores_no_texts() -> None:
    with pytest.raises(UserError, match='no probability'):
        task().scores(jnp.zeros((1, 1)), {})


def classifier(outputs: int) -> TextClassifier:
    made = model()
    return TextClassifier(made.embedding.clone(), made.stack.clone(deep=True), head=Linear(outputs))


def test_a_classifier_has_the_parameters_of_the_masked_model() -> None:
    ids = jnp.ones((1, 4), jnp.int32)

    def params(layer: Any) -> Any:
        found = jax.eval_shape(layer.module().init, jax.random.key(0), ids)['params']
        return {
            jax.tree_util.keystr(path): x.shape
            for path, x in jax.tree_util.tree_leaves_with_path(unboxed(found))
        }

    wanted = params(model())
    found = params(classifier(3))
    assert found.items() > wanted.items()
    assert found.keys() - wanted.keys() == {"['head']['kernel']"}


@pytest.mark.parametrize('kind', [ClassificationTask, RegressionTask])
def test_padding_of_a_text_changes_no_output(kind: Any) -> None:
    made = kind(classifier(3), Learner(0.1), input_feature='ids', padding_feature='ids')
    variables: Any = made.model.module().init(jax.random.key(0), jnp.ones((1, 4), jnp.int32))

    def outputs(ids: list[list[int]]) -> Any:
        batch: Any = {'ids': jnp.array(ids), 'label': jnp.zeros(len(ids), jnp.int32)}
        return made.model.module().apply(variables, *made.model_inputs(batch))

    alone = outputs([[3, 4, 5]])
    padded = outputs([[3, 4, 5, 0, 0], [7, 8, 9, 1, 2]])
    np.testing.assert_allclose(padded[0], alone[0], rtol=1e-5, atol=1e-6)


class TextsInput(ArraysInput):
    """Texts of different lengths; the label says whether the token 7 is in them."""

    def read(self) -> Arrays:
        rng = np.random.default_rng(0)
        ids = rng.integers(1, 30, (256, 12)).astype(np.int32)
        ids[np.arange(12) >= rng.integers(4, 13, (256, 1))] = 0
        return arrays_of({'ids': ids, 'label': (ids == 7).any(axis=1).astype(np.int32)})


def trained(fields: Any, steps: int) -> list[float]:
    """The losses of some steps of the tiny experiment with other fields."""
    made = localized(experiment(**fields))
    program, values = compiled(made)
    key = program.random_key(0)
    state = program.init(key, values)
    losses = []
    for _ in range(steps):
        batch = program.put(made.train_input.get_next())
        state, metrics = program.train_step(state, batch, key, values)
        losses.append(float(metrics['loss'].value()))
    return losses


@pytest.mark.slow
def test_a_masked_model_trains() -> None:
    losses = trained({'task': task(mask_rate=0.3)}, steps=80)
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.5


def test_a_resumed_masked_model_hides_the_same_tokens_bit_for_bit(tmp_path: Path) -> None:
    made = experiment(num_steps=4, task=task(mask_rate=0.3), train__evaluation__every=2)
    whole = measured(made, tmp_path / 'whole')
    running = run(made, tmp_path / 'parts')
    next(running)
    running.close()
    rest = measured(made, tmp_path / 'parts')
    assert rest[0].resumed_from == 2
    assert without_speed(rest[-1]) == without_speed(whole[-1])
    states = (final_state(made, tmp_path / each) for each in ('whole', 'parts'))
    jax.tree.map(np.testing.assert_array_equal, *states)


@pytest.mark.slow
def test_a_classifier_of_texts_trains() -> None:
    made = classifier(2).rebind(pool=SequencePool('max'))
    fields = {
        'task': ClassificationTask(made, Learner(1e-2), input_feature='ids', padding_feature='ids'),
        'train_input': TextsInput(batch_size=64, is_training=True),
        'eval_inputs': {},
    }
    losses = trained(fields, steps=120)
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])


@pytest.mark.slow
def test_a_model_with_heads_of_later_tokens_trains() -> None:
    block = TransformerBlock(Attention(2), FeedForward(16))
    future = FutureTokens([block.clone(deep=True)])
    made = TransformerLm(Embedding(VOCAB, 8), Stack([block]), future_tokens=future)
    losses = trained({'task': LanguageModelTask(made, Learner(1e-2, microbatches=2))}, steps=40)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5
