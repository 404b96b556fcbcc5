"""Llama and its relatives: Mistral, Qwen 2 and 3, Mixtral.

All are a `TransformerLm` of equal blocks with grouped queries, rotary positions and RMSNorm. Norms
store scale - 1 here, and the embedding is not multiplied by the root of the width.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from trainer.layers.activations import Activation
from trainer.layers.attention import Attention
from trainer.layers.base import Layer
from trainer.layers.embedding import Embedding
from trainer.layers.experts import Experts
from trainer.layers.feed_forward import GatedFeedForward
from trainer.layers.linear import Linear
from trainer.layers.normalization import RMSNorm
from trainer.layers.router import Router
from trainer.layers.stack import Stack
from trainer.layers.transformer import TransformerBlock, TransformerLm
from trainer.pretrained.family import Family
from trainer.pretrained.model_config import ModelConfig
from trainer.pretrained.rope import rope_of, rope_parameters
from trainer.warm_start_rules import TensorRule

BLOCK, LAYER = r'stack\.layers_(\d+)\.', r'model.layers.\1.'
_ATTENTION = BLOCK + r'attention\.', LAYER + 'self_attn.'
_QUERY_KEY_VALUE = ('query', 'q'), ('key', 'k'), ('value', 'v')

PROJECTIONS = (
    *(
        TensorRule(_ATTENTION[0] + here, f'{_ATTENTION[1]}{there}_proj.weight', 'to_heads')
        for here, there in _QUERY_KEY_VALUE
    ),
    TensorRule(_ATTENTION[0] + 'output', _ATTENTION[1] + 'o_proj.weight', 'from_heads'),
)
_SHARED = (
    TensorRule(r'embedding\.table', 'model.embed_tokens.weight'),
    TensorRule(r'final_norm\.scale', 'model.norm.weight', 'minus_one'),
    TensorRule(r'head\.kernel', 'lm_head.weight', 'transpose'),
    TensorRule(BLOCK + r'attention_norm\.scale', LAYER + 'input_layernorm.weight', 'minus_one'),
    TensorRule(
        BLOCK + r'feed_forward_norm\.scale',
        LAYER + 'post_attention_layernorm.weight',
        'minus_one',
    ),
    *PROJECTIONS,
)
_BIASES = (
    *(
        TensorRule(
            _ATTENTION[0] + f'{here}_bias', f'{_ATTENTION[1]}{there}_proj.bias', 'split_heads'
        )
        for here, there in _QUERY_KEY_VALUE
    ),
    TensorRule(_ATTENTION[0] + 'output_bias', _ATTENTION[1] + 'o_proj.bias'),
)
_QK_NORMS = tuple(
    TensorRule(
        _ATTENTION[0] + rf'{here}_norm\.scale', f'{_ATTENTION[1]}{there}.weight', 'minus_one'
    )
    for here, there in (('query', 'q_norm'), ('key', 'k_norm'))
)
GATED = (
    TensorRule(BLOCK + r'feed_forward\.(gate|up|down)', LAYER + r'mlp.\2_proj.weight', 'transpose'),
    TensorRule(BLOCK + r'feed_forward\.(gate|up|down)_bias', LAYER + r'mlp.\2_proj.bias'),
)
_EXPERTS = (
    TensorRule(
        BLOCK + r'feed_forward\.router\.kernel',
        LAYER + 'block_sparse_moe.gate.weight',
        'transpose',
    ),
    *(
        TensorRule(
            BLOCK + rf'feed_forward\.{here}',
            LAYER + f'block_sparse_moe.experts.*.{there}.weight',
            'transpose',
        )
        for here, there in (('gate', 'w1'), ('down', 'w2'), ('up', 'w3'))
    ),
)

_ACTIVATIONS: dict[str, Activation] = {
    'silu': 'silu',
    'gelu_pytorch_tanh': 'gelu',
    'gelu_new': 'gelu',
    'gelu': 'gelu_exact',
    'relu': 'relu',
}
"""The activations of transformers, by their names there."""


def activation_of(
    config: ModelConfig, field: str = 'hidden_act', default: str = 'silu'
) -> Activation:
    """The activation of a `config.json`."""
    return _ACTIVATIONS[config.choice(field, [*_ACTIVATIONS], default)]


def activation_name(activation: Activation) -> str:
    """The way back; the first name where several have one meaning."""
    return next(
        (there for there, here in _ACTIVATIONS.items() if here == activation), str(activation)
    )


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Differences between the relatives.

    Attributes:
        attention: fields of `Attention` besides those that all have.
        attention_config: the way back.
        feed_forward: the layer.
        feed_forward_config: the way back.
    """

    attention: Callable[[ModelConfig], dict[str, Any]]
    attention_config: Callable[[Attention], dict[str, Any]]
    feed_forward: Callable[[ModelConfig], Layer]
    feed_forward_config: Callable[[Any], dict[str, Any]]

    def model(self, config: ModelConfig) -> TransformerLm:
        """The model of a `config.json`."""
        config.require('attention_dropout', 0.0)
        config.require('pretraining_tp', 1)
        config.require('rope_interleaved', False)
        dims, epsilon = config.get('hidden_size', int), config.get('rms_norm_eps', float, 1e-6)
        vocab_size, heads = config.get('vocab_size', int), config.get('num_attention_heads', int)
        attention = Attention(
            num_heads=heads,
            head_dim=config.get('head_dim', int, dims // heads),
            num_kv_heads=config.get('num_key_value_heads', int, heads),
            position=rope_of(config),
            **self.attention(config),
        )
        norms = RMSNorm(epsilon), RMSNorm(epsilon)
        block = TransformerBlock(attention, self.feed_forward(config), *norms)
        tied = config.get('tie_word_embeddings', bool, False)
        return TransformerLm(
            embedding=Embedding(vocab_size, dims, scale_sqrt_depth=False),
            stack=Stack([block], repeats=config.get('num_hidden_layers', int)),
            final_norm=RMSNorm(epsilon),
            head=None if tied else Linear(vocab_size, axes=['embed', 'vocab']),
        )

    def config(self, model: TransformerLm) -> dict[str, Any]:
        """The fields of a model."""
        block = model.stack.layers[0]
        attention, dims = block.attention, model.embedding.dims
        return {
            'vocab_size': model.vocab_size,
            'hidden_size': dims,
            'num_hidden_layers': len(model.stack.layers) * model.stack.repeats,
            'num_attention_heads': attention.num_heads,
            'num_key_value_heads': attention.num_kv_heads or attention.num_heads,
            'head_dim': attention.head_dim or dims // attention.num_heads,
            'hidden_act': activation_name(block.feed_forward.activation),
            'rms_norm_eps': float(block.attention_norm.epsilon),
            'tie_word_embeddings': model.head is None,
            'rope_parameters': rope_parameters(attention.position),
            **self.attention_config(attention),
            **self.feed_forward_config(block.feed_forward),
        }

    def family(self, architecture: str, *rules: TensorRule) -> Family:
        """The family of an architecture."""
        rules = (*_SHARED, *rules)
        model_type = architecture.removesuffix('ForCausalLM').lower()
        return Family(architecture, model_type, rules, self.model, self.config, (r'.*\.inv_freq',))


def _gated(config: ModelConfig, has_bias: bool = False) -> GatedFeedForward:
    bias = has_bias and config.get('mlp_bias', bool, False)
    return GatedFeedForward(
        config.get('intermediate_size', int),
        activation=activation_of(config),
        bias='zeros' if bias else 'none',
    )


def _gated_config(layer: GatedFeedForward) -> dict[str, Any]:
    return {'intermediate_size': layer.hidden_dims}


def _llama_attention(config: ModelConfig) -> dict[str, Any]:
    return {'bias': 'zeros' if config.get('attention_bias', bool, False) else 'none'}


def _llama_attention_config(attention: Attention) -> dict[str, Any]:
    return {'attention_bias': attention.bias == 'zeros'}


def _window(config: ModelConfig) -> dict[str, Any]:
    return {'window': config.optional('sliding_window', int)}


def _window_config(attention: Attention) -> dict[str, Any]:
    return {'sliding_window': attention.window}


def _qwen_window(config: ModelConfig) -> None:
    # All layers have no window, or some have one, from `max_window_layers` on.
    config.require('use_sliding_window', False)
    config.require('layer_types', ['full_attention'] * config.get('num_hidden_layers', int))
    config.ignore('sliding_window', 'max_window_layers')


def _qwen2_attention(config: ModelConfig) -> dict[str, Any]:
    _qwen_window(config)
    return {'bias': ['query', 'key', 'value']}


def _qwen3_attention(config: ModelConfig) -> dict[str, Any]:
    _qwen_window(config)
    norm = RMSNorm(config.get('rms_norm_eps', float, 1e-6))
    return {'qk_norm': norm, **_llama_attention(config)}


def _experts(config: ModelConfig) -> Experts:
    config.require('router_jitter_noise', 0.0)
    config.ignore('output_router_logits')
    return Experts(
        config.get('num_local_experts', int, 8),
        config.get('intermediate_size', int),
        Router(
            config.get('num_experts_per_tok', int, 2),
            balance_loss=config.get('router_aux_loss_coef', float, 0.001),
            z_loss=None,
        ),
        activation=activation_of(config),
    )


def _experts_config(layer: Experts) -> dict[str, Any]:
    router = layer.router
    return {
        'num_local_experts': layer.num_experts,
        'num_experts_per_tok': router.experts_per_token,
        'intermediate_size': layer.hidden_dims,
        'router_aux_loss_coef': float(router.balance_loss or 0.0),
    }


FAMILIES = (
    _Kind(
        _llama_attention,
        _llama_attention_config,
        lambda config: _gated(config, has_bias=True),
        lambda layer: _gated_config(layer) | {'mlp_bias': layer.bias == 'zeros'},
    ).family('LlamaForCausalLM', *_BIASES, *GATED),
    _Kind(_window, _window_config, _gated, _gated_config).family('MistralForCausalLM', *GATED),
    _Kind(_qwen2_attention, lambda _: {}, _gated, _gated_config).family(
        'Qwen2ForCausalLM', *_BIASES, *GATED
    ),
    _Kind(_qwen3_attention, _llama_attention_config, _gated, _gated_config).family(
        'Qwen3ForCausalLM', *_BIASES, *_QK_NORMS, *GATED
    ),
    _Kind(_window, _window_config, _experts, _experts_config).family(
        'MixtralForCausalLM', *_EXPERTS
    ),
)
