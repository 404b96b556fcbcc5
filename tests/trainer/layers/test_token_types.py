import jax.numpy as jnp
import pytest

from trainer.layers import (
    Activate,
    Attention,
    Embedding,
    FeedForward,
    Linear,
    Positions,
    Stack,
    TextClassifier,
    TokenTypes,
    TransformerBlock,
    TransformerLm,
)

STACK = Stack([TransformerBlock(Attention(2, mask='full'), FeedForward())])


def test_packed_texts_have_parts_of_their_own() -> None:
    segments = jnp.array([[1, 1, 1, 1, 2, 2, 2, 2, 0]])
    ids = jnp.array([[5, 9, 6, 9, 5, 5, 9, 6, 0]])
    types = TokenTypes(2, separator=9).of(ids, Positions.packed(segments))
    assert types.tolist()[0][:8] == [0, 0, 1, 1, 0, 0, 0, 1]


def test_parts_beyond_the_last_type_have_it() -> None:
    assert TokenTypes(2, separator=9).of(jnp.array([[9, 9, 9, 1]])).tolist() == [[0, 1, 1, 1]]


def test_without_a_separator_a_text_has_one_part() -> None:
    assert TokenTypes().of(jnp.array([[9, 9, 1]])).tolist() == [[0, 0, 0]]


def test_a_head_has_its_own_bias() -> None:
    with pytest.raises(ValueError, match=r'shared_head_bias .* set head.bias'):
        TransformerLm(Embedding(6, 8), STACK, head=Linear(6), shared_head_bias='zeros')


def test_a_classifier_refuses_the_transform_of_a_language_model() -> None:
    with pytest.raises(ValueError, match='transform: it is for language models'):
        TextClassifier(Embedding(6, 8), STACK, head=Linear(2), transform=Activate())
