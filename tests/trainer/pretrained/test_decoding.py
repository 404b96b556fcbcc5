"""Greedy answers of pretrained models, token by token from their caches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.loaded import loaded
from tests.factories.pretrained import calls, directory
from trainer.decoding import Greedy
from trainer.layers.base import ForwardContext
from trainer.learner import Learner
from trainer.pretrained.families import model_of
from trainer.program.step_functions import decode
from trainer.tasks import LanguageModelTask
from trainer.warm_start_rules import Pretrained

NAMES = [
    'gemma_2', 'gemma_3', 'gpt_2', 'llama_2', 'llama_3', 'mistral', 'mixtral', 'qwen_2', 'qwen_3'
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_greedy_answers_are_those_of_transformers(name: str) -> None:
    where, call = str(directory(name)), calls(name)[1]
    model, prompt, wanted = model_of(where), call['input_ids'], call['continuation']
    task = LanguageModelTask(
        model, Learner(1e-3), decoder=Greedy(len(wanted), prompt_length=prompt.shape[1])
    )
    variables = {'params': loaded(Pretrained(where), model, prompt)}
    batch = {'ids': jnp.asarray(prompt, jnp.int32)}
    found = decode(task, variables, batch, jax.random.key(0), ForwardContext()).decoded
    np.testing.assert_array_equal(found.ids_BNT[0, 0], wanted)
    whole = np.concatenate([prompt[0], wanted])[None]
    logits = jax.nn.log_softmax(model.module().apply(variables, whole)[0])
    begin = prompt.shape[1] - 1
    without_cache = sum(logits[begin + i, token] for i, token in enumerate(wanted))
    np.testing.assert_allclose(found.log_probs_BN[0, 0], without_cache, atol=1e-3)
