"""A published model, whole: its tokenizer, its weights, its answer."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.loaded import loaded
from tests.factories.pretrained import write_smollm2
from trainer.decoding import Greedy
from trainer.inputs.tokens.tokenizer import TokenizerVocabulary
from trainer.layers.base import ForwardContext
from trainer.learner import Learner
from trainer.pretrained.families import model_of
from trainer.program.step_functions import decode
from trainer.tasks import LanguageModelTask
from trainer.warm_start_rules import Pretrained


@pytest.mark.slow
def test_smollm2_reads_and_answers_as_in_transformers(tmp_path: Path) -> None:
    wanted, where = write_smollm2(tmp_path), str(tmp_path)
    vocabulary, model = TokenizerVocabulary(where), model_of(where)
    rows = [wanted[f'input_ids_{number}'][0] for number in range(len(wanted['texts']))]
    for text, row in zip(wanted['texts'], rows, strict=True):
        np.testing.assert_array_equal(vocabulary.encode(str(text)), row)
    ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for padded, row in zip(ids, rows, strict=True):
        padded[: len(row)] = row
    variables = {'params': loaded(Pretrained(where), model, ids)}
    logits = jax.jit(model.module().apply)(variables, ids)
    for number, row in enumerate(rows):
        found = logits[number, : len(row)]
        np.testing.assert_allclose(found, wanted[f'logits_{number}'][0], atol=1e-3)
    answer = wanted['continuation_0']
    decoder = Greedy(len(answer), prompt_length=len(rows[0]))
    task = LanguageModelTask(model, Learner(1e-3), decoder=decoder)
    batch = {'ids': jnp.asarray(rows[0][None], jnp.int32)}
    texts = decode(task, variables, batch, jax.random.key(0), ForwardContext()).decoded.ids_BNT
    np.testing.assert_array_equal(texts[0, 0], answer)
    assert 'Paris' in vocabulary.decode(np.asarray(texts[0, 0]))
