"""Texts of a decode set, with and without targets."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from trainer.decoding import Greedy
from trainer.decoding.base import Decoded, DecodeOutput
from trainer.decoding.examples import decoded_examples, text_metrics
from trainer.inputs import SyntheticLmInput
from trainer.symbolic.errors import UserError

IDS = np.array([[1, 2, 3, 0], [4, 5, 0, 0], [0, 0, 0, 0]], np.int32)
PROMPTS = {'ids': IDS, 'prefix_lengths': np.array([2, 2, 0], np.int32)}


def examples(**features: Any) -> list[Any]:
    batch = {name: jnp.asarray(value) for name, value in (PROMPTS | features).items()}
    shape = (len(IDS), 1)
    decoded = Decoded(
        jnp.full((*shape, 2), 3), jnp.full(shape, 2), jnp.zeros(shape), jnp.zeros(shape)
    )
    output = DecodeOutput(batch, batch['prefix_lengths'], decoded)
    data = SyntheticLmInput(batch_size=3, sequence_length=4, vocab_size=8)
    return list(decoded_examples(Greedy(2), data, output, first=1))


@pytest.mark.parametrize(
    'features',
    [{}, {'labels': IDS, 'weights': np.zeros(IDS.shape, np.float32)}],
    ids=['no labels', 'labels of weight 0'],
)
def test_prompts_need_no_targets(features: Any) -> None:
    found = examples(**features)
    assert [(each.number, each.prompt) for each in found] == [(1, '1 2'), (2, '4 5')]
    assert {(each.target, each.is_right) for each in found} == {('', None)}
    metrics = text_metrics(found)
    assert metrics['num_decoded'] == 2
    assert 'exact_match' not in metrics


def test_rows_may_have_targets_or_none() -> None:
    weights = np.array([[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    labels = np.array([[2, 3, 3, 0], [5, 0, 0, 0], [0, 0, 0, 0]], np.int32)
    found = examples(labels=labels, weights=weights)
    assert [(each.target, each.is_right) for each in found] == [('3 3', True), ('', None)]
    assert text_metrics(found)['exact_match'] == 1


def test_rows_that_are_padding_by_their_weights_are_left_out() -> None:
    found = examples(eval_sample_weights=np.array([1, 0, 1], np.float32))
    assert [each.prompt for each in found] == ['1 2']


def test_a_target_without_a_prompt_is_refused() -> None:
    features = {'labels': IDS, 'weights': np.ones(IDS.shape, np.float32)}
    lengths = np.array([2, 0, 1], np.int32)
    with pytest.raises(UserError, match=r'^example 2 has a target, but its prompt has length 0'):
        examples(prefix_lengths=lengths, **features)
