"""Fields of a `config.json`: each has its effect, or is refused by its name."""

from typing import Any

import pytest

from trainer.layers import Attention, Rotary, TransformerLm
from trainer.layers.rotary_scaling import LinearScaling, LlamaScaling, YarnScaling
from trainer.pretrained.families import described, family_of
from trainer.pretrained.model_config import ModelConfig
from trainer.symbolic.errors import UserError

SMALL = {
    'architectures': ['LlamaForCausalLM'],
    'vocab_size': 64,
    'hidden_size': 24,
    'intermediate_size': 32,
    'num_hidden_layers': 2,
    'num_attention_heads': 4,
}


def model(**fields: Any) -> TransformerLm:
    config = ModelConfig(SMALL | fields)
    made = described(family_of(config), config)
    assert isinstance(made, TransformerLm)
    return made


def attention(**fields: Any) -> Attention:
    found = model(**fields).stack.layers[0].attention
    assert isinstance(found, Attention)
    return found


def test_fields_of_former_files_have_their_effect() -> None:
    scaling = {'type': 'llama3', 'factor': 4, 'low_freq_factor': 1, 'high_freq_factor': 2}
    scaling |= {'original_max_position_embeddings': 32}
    found = attention(rope_theta=500, rope_scaling=scaling, torch_dtype='bfloat16')
    assert found.position == Rotary(500.0, scaling=LlamaScaling(4.0, 1.0, 2.0, 32))
    assert (found.num_kv_heads, found.head_dim, found.bias) == (4, 6, 'none')


@pytest.mark.parametrize(
    ('parameters', 'wanted'),
    [
        ({'rope_type': 'default', 'rope_theta': 100.0}, Rotary(100.0)),
        ({'rope_type': 'linear', 'factor': 2.0}, Rotary(scaling=LinearScaling(2.0))),
        (
            {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 32},
            Rotary(scaling=YarnScaling(4.0, 32)),
        ),
        ({'partial_rotary_factor': 1.0}, Rotary()),
    ],
)
def test_rotary_positions(parameters: dict[str, Any], wanted: Rotary) -> None:
    assert attention(rope_parameters=parameters).position == wanted


def test_biases_and_heads() -> None:
    biased = attention(attention_bias=True, num_key_value_heads=2, head_dim=8)
    assert (biased.bias, biased.num_kv_heads, biased.head_dim) == ('zeros', 2, 8)
    assert model(mlp_bias=True).stack.layers[0].feed_forward.bias == 'zeros'
    assert model(tie_word_embeddings=True).head is None
    assert (
        model(architectures=['MistralForCausalLM'], sliding_window=3)
        .stack.layers[0]
        .attention.window
        == 3
    )


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'attention_multiplier': 2.0}, 'config.json: attention_multiplier=2.0: LlamaForCausalLM'),
        ({'quantization_config': {'bits': 4}}, "quantization_config={'bits': 4}"),
        ({'attention_dropout': 0.1}, 'attention_dropout is 0.1, which is not supported'),
        ({'pretraining_tp': 2}, 'pretraining_tp is 2, which is not supported'),
        ({'hidden_act': 'xielu'}, "hidden_act is 'xielu', which is not supported"),
        ({'hidden_size': '24'}, "hidden_size must be of type int, not '24'"),
        ({'hidden_size': True}, 'hidden_size must be of type int, not True'),
        ({'vocab_size': None}, 'vocab_size must be of type int, not None'),
        ({'rms_norm_eps': 'x'}, "rms_norm_eps must be of type float, not 'x'"),
        ({'rope_scaling': {'type': 'dynamic', 'factor': 2.0}}, "rope_type 'dynamic' is not supp"),
        ({'rope_scaling': {'type': 'linear'}}, 'rope_parameters'),
        ({'rope_scaling': {'type': 'linear', 'factor': 2.0, 'mscale': 1}}, "['mscale']"),
        ({'rope_theta': 0.5}, 'wavelength must be above 1'),
        ({'num_attention_heads': 5, 'head_dim': 8, 'num_key_value_heads': 2}, 'num_kv_heads (2)'),
        ({'num_hidden_layers': 0}, 'num_hidden_layers must be from 1 to 1,000, not 0'),
        ({'num_hidden_layers': 10**9}, 'num_hidden_layers must be from 1 to 1,000, not 1000000'),
        ({'num_attention_heads': 0}, 'num_attention_heads must be from 1 to 2,147,483,647, not 0'),
        ({'vocab_size': 10**12}, 'vocab_size must be from 1 to 2,147,483,647, not 10000000'),
        ({'architectures': ['LlamaForCausalLn']}, 'LlamaForCausalLn, which is not known. Did you'),
        ({'architectures': ['MambaForCausalLM']}, 'MambaForCausalLM, which is not known.'),
        ({'architectures': 'LlamaForCausalLM'}, 'architectures must name the class'),
        (
            {'architectures': ['Qwen2ForCausalLM'], 'use_sliding_window': True},
            'use_sliding_window is True, which is not supported',
        ),
        (
            {'architectures': ['Qwen3ForCausalLM'], 'layer_types': ['full_attention', 'x']},
            "layer_types is ['full_attention', 'x']",
        ),
        (
            {
                'architectures': ['MixtralForCausalLM'],
                'num_local_experts': 2,
                'num_experts_per_tok': 3,
            },
            'router.experts_per_token (3)',
        ),
    ],
)
def test_unsupported_fields_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        model(**fields)
    assert message in str(caught.value)
    assert 'config.json' in str(caught.value)
