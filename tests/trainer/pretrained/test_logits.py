"""Logits of directories that the real `transformers` wrote, in models of the trainer."""

import pytest

from tests.factories.loaded import largest_difference

LIKE_LLAMA = 'llama_2', 'llama_3', 'mistral', 'qwen_2', 'qwen_3', 'mixtral'
GEMMA = 'gemma_2', 'gemma_3'


@pytest.mark.parametrize('name', [*LIKE_LLAMA, *GEMMA])
def test_logits_are_those_of_transformers(name: str) -> None:
    assert largest_difference(name) < 1e-4
