"""Fields of `config.json`, former and present, and the way back from models."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.factories.pretrained import directory
from trainer.pretrained.families import FAMILIES, model_of
from trainer.symbolic.errors import UserError

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
        ('gemma_2', {'hidden_activation': 'mish'}, "hidden_activation is 'mish'"),
        ('gemma_2', {'attention_bias': True}, 'attention_bias is True, which is not supported'),
        ('gemma_2', {'layer_scale': 0.1}, 'layer_scale=0.1: Gemma2ForCausalLM is not known'),
    ],
)
def test_fields_without_an_implementation_are_refused(
    name: str, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        model_with(tmp_path, name, **changed)
