"""Fields of `config.json`, former and present, and the way back from models."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.factories.pretrained import directory
from trainer.pretrained.families import FAMILIES, model_of
from trainer.symbolic.errors import UserError
from trainer.warm_start_rules import TensorRule

NAMES = sorted(folder.name for folder in directory('').iterdir())
_THETA = {'rope_theta': 1000.0, 'rope_local_base_freq': 100.0}
_LINEAR = {'rope_type': 'linear', 'factor': 4.0}


def fields_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory(name) / 'config.json').read_text())
    return found


def model_with(place: Path, name: str, **changed: Any) -> Any:
    """The model of a fixture's `config.json` with other fields; None leaves one out."""
    fields = {key: value for key, value in (fields_of(name) | changed).items() if value is not None}
    (place / 'config.json').write_text(json.dumps(fields))
    return model_of(str(place))


@pytest.mark.parametrize('name', NAMES)
def test_the_fields_of_a_model_describe_it(name: str, tmp_path: Path) -> None:
    model = model_of(str(directory(name)))
    architecture = fields_of(name)['architectures'][0]
    fields = FAMILIES[architecture].config(model)
    (tmp_path / 'config.json').write_text(json.dumps({'architectures': [architecture], **fields}))
    assert model_of(str(tmp_path)) == model


def test_former_files_of_gemma_3_have_the_same_model(tmp_path: Path) -> None:
    present = dict.fromkeys(['rope_parameters', 'layer_types', '_sliding_window_pattern'])
    former = {**_THETA, 'rope_scaling': _LINEAR, 'sliding_window_pattern': 3}
    made = model_with(tmp_path, 'gemma_3', **present, **former)
    assert made == model_of(str(directory('gemma_3')))


def test_former_files_of_gemma_2_begin_with_a_window(tmp_path: Path) -> None:
    made = model_with(tmp_path, 'gemma_2', layer_types=None, num_hidden_layers=4)
    assert [block.attention.window for block in made.stack.layers] == [6, None]
    assert made.stack.repeats == 2


@pytest.mark.parametrize(
    ('name', 'changed', 'message'),
    [
        ('gemma_2', {'layer_types': ['full_attention']}, 'layer_types must have full_attention or'),
        ('gemma_3', {'use_bidirectional_attention': True}, 'use_bidirectional_attention is True'),
        ('gemma_3', {'rope_parameters': _THETA}, 'must have full_attention and sliding_attention'),
        ('gemma_3', {'rope_parameters': {'full_attention': {}}}, 'not full_attention$'),
        ('gemma_2', {'hidden_activation': 'mish'}, "hidden_activation is 'mish'"),
        ('gemma_2', {'attention_bias': True}, 'attention_bias is True, which is not supported'),
        ('gpt_2', {'scale_attn_by_inverse_layer_idx': True}, 'scale_attn_by_inverse_layer_idx'),
        ('bert', {'position_embedding_type': 'relative_key'}, "only 'absolute' is"),
        ('bert', {'is_decoder': True}, 'is_decoder is True'),
        ('bert_classifier', {'tie_word_embeddings': False}, 'tie_word_embeddings is False'),
        ('vit', {'patch_size': 'large'}, 'patch_size must be of type int'),
        ('gemma_2', {'layer_scale': 0.1}, 'layer_scale=0.1: Gemma2ForCausalLM is not known'),
    ],
)
def test_fields_without_an_implementation_are_refused(
    name: str, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        model_with(tmp_path, name, **changed)


@pytest.mark.parametrize('place', ['sep_token_id', 'vocab.txt', 'tokenizer.json', ''])
def test_the_separator_of_sentences_is_found(place: str, tmp_path: Path) -> None:
    if place == 'vocab.txt':
        (tmp_path / place).write_text('[PAD]\n[CLS]\n[SEP]\n')
    elif place == 'tokenizer.json':
        (tmp_path / place).write_text('{"added_tokens": [{"id": 2, "content": "[SEP]"}]}')
    fields = {'sep_token_id': 2} if place == 'sep_token_id' else {}
    found = model_with(tmp_path, 'bert', **fields).token_types.separator
    assert found == (2 if place else None)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / 'tokenizer.json').write_text('[]')
    with pytest.raises(UserError, match=r'tokenizer.json: added_tokens cannot be read'):
        model_with(tmp_path, 'bert')


def test_a_part_beyond_the_parts_of_a_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match='part must lie between 0 and 2: 3'):
        TensorRule('query', 'c_attn.weight', 'split_heads', 3, 3)
