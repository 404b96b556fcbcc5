"""Logits of directories that the real `transformers` wrote, in models of the trainer."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.factories.loaded import largest_difference, loaded, shapes_of
from tests.factories.pretrained import calls, directory
from trainer.checkpoints.checksums import leaves_by_name
from trainer.layers import Positions
from trainer.pretrained.families import model_of
from trainer.warm_start.pretrained_reader import PretrainedReader
from trainer.warm_start_rules import Pretrained

LIKE_LLAMA = 'llama_2', 'llama_3', 'mistral', 'qwen_2', 'qwen_3', 'mixtral'
OTHERS = 'gemma_2', 'gemma_3', 'gpt_2'


@pytest.mark.parametrize('name', [*LIKE_LLAMA, *OTHERS])
def test_logits_are_those_of_transformers(name: str) -> None:
    assert largest_difference(name) < 1e-4


@pytest.mark.pax('`BertModel`')
@pytest.mark.parametrize('name', ['bert', 'bert_classifier'])
def test_encoders_know_padding_and_sentences_of_pairs(name: str) -> None:
    where = str(directory(name))
    model = model_of(where)
    rows = [(ids, call) for call in calls(name) for ids in call['input_ids']]
    ids = np.zeros((len(rows), 21), np.int32)
    mask = np.zeros_like(ids)
    for row, (tokens, call) in enumerate(rows):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1 if 'attention_mask' not in call else tokens != 0
    params = loaded(Pretrained(where), model, ids)

    @jax.jit
    def apply(params: Any, mask: jax.Array) -> Any:
        return model.module().apply({'params': params}, ids, Positions.packed(mask))

    logits = np.asarray(apply(params, mask))
    wanted = [row for call in calls(name) for row in call['logits']]
    for found, each, is_token in zip(logits, wanted, mask == 1, strict=True):
        found, each = (x[is_token[: len(x)]] if x.ndim == 2 else x for x in (found, each))
        assert np.abs(found - each).max() < 1e-4


def test_images_have_the_logits_of_transformers() -> None:
    where, (call,) = str(directory('vit')), calls('vit')
    images, model = call['pixel_values'].transpose(0, 2, 3, 1), model_of(where)
    params = loaded(Pretrained(where), model, images)
    logits = jax.jit(model.module().apply)({'params': params}, images)
    assert np.abs(logits - call['logits']).max() < 1e-4


def renamed(name: str, place: Path, *changes: tuple[str, str]) -> None:
    """Writes a fixture with former names of its tensors."""
    arrays = load_file(directory(name) / 'model.safetensors')
    for present, former in changes:
        arrays = {key.replace(present, former): value for key, value in arrays.items()}
    if name == 'gpt_2':
        arrays['h.0.attn.bias'] = np.tril(np.ones((1, 1, 64, 64), np.float32))
    save_file(arrays, place / 'model.safetensors')
    for file in directory(name).glob('[cv]*'):
        (place / file.name).write_bytes(file.read_bytes())


def test_former_names_of_gpt_2_are_known(tmp_path: Path) -> None:
    renamed('gpt_2', tmp_path, ('transformer.', ''))
    model, ids = model_of(str(tmp_path)), np.zeros((1, 9), np.int32)
    places = tmp_path, directory('gpt_2')
    former, present = (loaded(Pretrained(str(place)), model, ids) for place in places)
    jax.tree.map(np.testing.assert_array_equal, former, present)


def test_a_masked_model_with_former_names_begins_a_classifier(tmp_path: Path) -> None:
    former = ('LayerNorm.weight', 'LayerNorm.gamma'), ('LayerNorm.bias', 'LayerNorm.beta')
    renamed('bert', tmp_path, *former)
    model = model_of(str(tmp_path), 'BertForSequenceClassification')
    leaves = leaves_by_name({'params': shapes_of(model, np.zeros((1, 9), np.int32))})
    start = Pretrained(str(tmp_path), ignore=[r'(head|pooler)\..*'])
    found = PretrainedReader(start, leaves).shapes
    left = {name.split('.')[1] for name in leaves.keys() - found.keys()}
    assert left == {'head', 'pooler'} and 'params.embedding_norm.scale' in found
