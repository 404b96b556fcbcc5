"""Each kind of model decodes the same text with a cache as without."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.decoding.test_decoding import VOCAB, Logits, slow_beam, slow_steps, texts
from trainer.decoding import BeamSearch, Decoder, Greedy
from trainer.layers import (
    Attention,
    CrossAttention,
    DecoderBlock,
    Embedding,
    FeedForward,
    Stack,
    TransformerBlock,
    TransformerEncoderDecoder,
    TransformerLm,
)
from trainer.layers.base import ForwardContext
from trainer.learner import Learner
from trainer.program.step_functions import decode, init_variables
from trainer.state import unboxed
from trainer.symbolic.component import bind, numbers
from trainer.task import Task
from trainer.tasks import LanguageModelTask, SequenceTask

STEPS = 5
DECODERS = [
    Greedy(STEPS, eos_ids=[4]),
    BeamSearch(STEPS, eos_ids=[4], beam_size=3),
]
SOURCES = np.array([[3, 1, 4, 0], [5, 9, 0, 0], [2, 6, 5, 8]], np.int32)
PROMPTS = np.array([[3, 1, 4, 7], [5, 9, 7, 7], [2, 6, 5, 8]], np.int32)
LENGTHS = [3, 2, 4]


def language_model(model_type: str) -> LanguageModelTask:
    block = TransformerBlock(Attention(4), FeedForward(32))
    model = TransformerLm(Embedding(VOCAB, 16), Stack([block], repeats=2, scan='never'))
    return LanguageModelTask(model, Learner(learning_rate=0.1), model_type=model_type)


def sequence_model(scan: str) -> SequenceTask:
    encoder = TransformerBlock(Attention(4, mask='full'), FeedForward(32))
    decoder = DecoderBlock(
        attention=Attention(4), feed_forward=FeedForward(32), cross_attention=CrossAttention(4)
    )
    model = TransformerEncoderDecoder(
        Embedding(VOCAB, 16),
        Stack([encoder], repeats=2, scan=scan),
        Stack([decoder], repeats=2, scan=scan),
    )
    return SequenceTask(model, Learner(learning_rate=0.1))


def variables_of(task: Task, batch: dict[str, np.ndarray]) -> Any:
    """New, large variables, so that the predictions of the model are confident."""
    spec = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch.items()}
    drawn = unboxed(init_variables(bind(task, numbers(task)), spec, jax.random.key(1)))
    return jax.tree.map(lambda leaf: 3 * leaf, drawn)


def written(task: Any, decoder: Decoder, variables: Any, batch: Any) -> Any:
    task = task.clone(deep=True, override={'decoder': decoder})
    step = jax.jit(lambda v, b, n: decode(bind(task, n), v, b, jax.random.key(0), ForwardContext()))
    return jax.device_get(step(variables, batch, numbers(task)))


def check(decoder: Decoder, output: Any, row: int, logits: Logits, prompt: list[int]) -> None:
    if isinstance(decoder, BeamSearch):
        wanted = [ids for _, ids in slow_beam(logits, prompt, decoder)]
    else:
        ids, _ = slow_steps(logits, prompt, decoder, lambda now, _: int(np.argmax(now)))
        wanted = [ids]
    assert texts(output.decoded)[row] == wanted


@pytest.mark.pax('A prefix that is')
@pytest.mark.parametrize(
    ('model_type', 'decoder'), list(zip(['causal', 'prefix'], DECODERS, strict=True))
)
@pytest.mark.slow
def test_language_models(model_type: str, decoder: Decoder) -> None:
    task = language_model(model_type)
    is_prefix = np.arange(4) < np.array(LENGTHS)[:, None]
    batch = {'ids': PROMPTS, 'inputs_indicator': is_prefix.astype(np.int32)}
    variables = variables_of(task, batch)
    output = written(task, decoder, variables, batch)
    np.testing.assert_array_equal(output.prompt_lengths_B, LENGTHS)
    for row, length in enumerate(LENGTHS):

        def logits(ids: list[int], length: int = length) -> np.ndarray:
            padded = np.zeros((1, 10), np.int32)
            padded[0, : len(ids)] = ids
            indicator = (np.arange(10) < length).astype(np.int32)[None]
            only: Any = {'ids': padded, 'inputs_indicator': indicator}
            inputs = task.model_inputs(only)
            found: Any = task.model.module().apply(variables, *inputs)
            return np.asarray(found[0, len(ids) - 1], np.float64)

        check(decoder, output, row, logits, PROMPTS[row, :length].tolist())


@pytest.mark.slow
@pytest.mark.parametrize(('scan', 'decoder'), list(zip(['never', 'always'], DECODERS, strict=True)))
def test_encoder_decoders(scan: str, decoder: Decoder) -> None:
    task = sequence_model(scan)
    weights = (SOURCES > 0).astype(np.float32)
    begin = np.zeros((3, 6), np.int32)
    batch = {'encoder_ids': SOURCES, 'encoder_weights': weights, 'ids': begin}
    variables = variables_of(task, batch)
    output = written(task, decoder, variables, batch)
    np.testing.assert_array_equal(output.prompt_lengths_B, 1)
    for row in range(3):

        def logits(ids: list[int], row: int = row) -> np.ndarray:
            padded = np.zeros((1, 7), np.int32)
            padded[0, : len(ids)] = ids
            only: Any = {
                'encoder_ids': SOURCES[row : row + 1],
                'encoder_weights': weights[row][None],
            }
            only |= {'ids': padded}
            inputs = task.model_inputs(only)
            found: Any = task.model.module().apply(variables, *inputs)
            return np.asarray(found[0, len(ids) - 1], np.float64)

        check(decoder, output, row, logits, [0])


def test_a_bidirectional_model_cannot_decode() -> None:
    block = TransformerBlock(Attention(4, mask='full'), FeedForward(32))
    model = TransformerLm(Embedding(VOCAB, 16), Stack([block]))
    learner = Learner(learning_rate=0.1)
    with pytest.raises(ValueError, match=r'decoder: a .bidirectional. model'):
        LanguageModelTask(model, learner, model_type='bidirectional', decoder=Greedy(4))


def test_prompts_come_from_the_batch_or_are_of_one_length() -> None:
    task = language_model('causal').clone(override={'decoder': Greedy(4, prompt_length=2)})
    ids = jnp.asarray(PROMPTS)
    assert task.prompts({'ids': ids}).lengths_B.tolist() == [2, 2, 2]
    assert task.prompts({'ids': ids}).ids_BP.shape == (3, 2)
    given = {'ids': ids, 'prefix_lengths': jnp.array([3, 0, 9])}
    # A row of padding has 0; lengths are at most those of the rows.
    assert task.prompts(given).lengths_B.tolist() == [3, 0, 4]
