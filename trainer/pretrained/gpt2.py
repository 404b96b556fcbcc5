"""GPT-2: learned positions, LayerNorm before each branch, biases. Kernels are [inputs, outputs]."""

from typing import Any

from trainer.layers.attention import Attention
from trainer.layers.embedding import Embedding
from trainer.layers.feed_forward import FeedForward
from trainer.layers.linear import Linear
from trainer.layers.normalization import LayerNorm
from trainer.layers.position_embedding import LearnedPositions
from trainer.layers.stack import Stack
from trainer.layers.transformer import TransformerBlock, TransformerLm
from trainer.pretrained import llama
from trainer.pretrained.biased import dropout_of, no_attention_dropout, norm_rules, rate_of
from trainer.pretrained.family import Family
from trainer.pretrained.model_config import ModelConfig
from trainer.warm_start_rules import TensorRule

_ATTENTION, _LAYER = rf'{llama.BLOCK}attention\.', r'transformer.h.\1.'
_QUERY_KEY_VALUE = 'query', 'key', 'value'
_RULES = (
    TensorRule(r'embedding\.table', 'transformer.wte.weight'),
    TensorRule(r'position_embedding\.table', 'transformer.wpe.weight'),
    TensorRule(r'head\.kernel', 'lm_head.weight', 'transpose'),
    *norm_rules('final_norm', 'transformer.ln_f'),
    *norm_rules(rf'{llama.BLOCK}attention_norm', f'{_LAYER}ln_1'),
    *norm_rules(rf'{llama.BLOCK}feed_forward_norm', f'{_LAYER}ln_2'),
    # One tensor has the kernels of queries, keys and values side by side, another one the biases.
    *(
        TensorRule(_ATTENTION + name + here, f'{_LAYER}attn.c_attn.{there}', 'split_heads', i, 3)
        for i, name in enumerate(_QUERY_KEY_VALUE)
        for here, there in (('', 'weight'), ('_bias', 'bias'))
    ),
    TensorRule(f'{_ATTENTION}output', f'{_LAYER}attn.c_proj.weight', 'split_inputs'),
    TensorRule(f'{_ATTENTION}output_bias', f'{_LAYER}attn.c_proj.bias'),
    *(
        TensorRule(rf'{llama.BLOCK}feed_forward\.{name}{here}', f'{_LAYER}mlp.{of}.{there}')
        for name, of in (('up', 'c_fc'), ('down', 'c_proj'))
        for here, there in (('', 'weight'), ('_bias', 'bias'))
    ),
)
_WITHOUT_EFFECT = (
    'n_ctx', 'reorder_and_upcast_attn', 'summary_activation', 'summary_first_dropout',
    'summary_proj_to_labels', 'summary_type', 'summary_use_proj', 'task_specific_params',
)  # fmt: skip


def _model(config: ModelConfig) -> TransformerLm:
    config.require('scale_attn_weights', True)
    config.require('scale_attn_by_inverse_layer_idx', False)
    config.require('add_cross_attention', False)
    config.ignore(*_WITHOUT_EFFECT)
    no_attention_dropout(config, 'attn_pdrop')
    dims, epsilon = config.get('n_embd', int), config.get('layer_norm_epsilon', float, 1e-5)
    vocab_size = config.get('vocab_size', int)
    block = TransformerBlock(
        Attention(config.get('n_head', int), position='none', bias='zeros'),
        FeedForward(
            config.get('n_inner', int, 4 * dims),
            activation=llama.activation_of(config, 'activation_function', 'gelu_new'),
            bias='zeros',
        ),
        LayerNorm(epsilon),
        LayerNorm(epsilon),
        dropout_of(config, 'resid_pdrop'),
    )
    tied = config.get('tie_word_embeddings', bool, True)
    return TransformerLm(
        embedding=Embedding(vocab_size, dims, scale_sqrt_depth=False),
        stack=Stack([block], repeats=config.get('n_layer', int)),
        final_norm=LayerNorm(epsilon),
        head=None if tied else Linear(vocab_size, axes=['embed', 'vocab']),
        dropout=dropout_of(config, 'embd_pdrop'),
        position_embedding=LearnedPositions(config.get('n_positions', int, 1024)),
    )


def _config(model: TransformerLm) -> dict[str, Any]:
    block, positions = model.stack.layers[0], model.position_embedding
    return {
        'vocab_size': model.vocab_size,
        'n_embd': model.embedding.dims,
        'n_layer': len(model.stack.layers) * model.stack.repeats,
        'n_head': block.attention.num_heads,
        'n_inner': block.feed_forward.hidden_width(model.embedding.dims),
        'n_positions': positions.max_length if isinstance(positions, LearnedPositions) else 1024,
        'activation_function': llama.activation_name(block.feed_forward.activation),
        'layer_norm_epsilon': float(block.attention_norm.epsilon),
        'tie_word_embeddings': model.head is None,
        'resid_pdrop': rate_of(block.dropout),
        'embd_pdrop': rate_of(model.dropout),
        'attn_pdrop': 0.0,
    }


FAMILIES = (
    Family(
        'GPT2LMHeadModel',
        'gpt2',
        _RULES,
        _model,
        _config,
        # Masks, and the table once more.
        (r'transformer\.h\.\d+\.attn\.(bias|masked_bias)', r'lm_head\.weight'),
        ((r'((wte|wpe|ln_f|h)\..*)', r'transformer.\1'),),
    ),
)
