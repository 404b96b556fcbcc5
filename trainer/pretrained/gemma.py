"""Gemma 2 and 3: norms before and after each branch, windows in some layers, capped logits.

Norms store scale - 1 there, too. The embedding is multiplied by the root of the width.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.layers.attention import Attention
from trainer.layers.embedding import Embedding
from trainer.layers.feed_forward import GatedFeedForward
from trainer.layers.linear import Linear
from trainer.layers.normalization import RMSNorm
from trainer.layers.rotary import Rotary
from trainer.layers.stack import Stack
from trainer.layers.transformer import TransformerBlock, TransformerLm
from trainer.pretrained import llama
from trainer.pretrained.family import Family
from trainer.pretrained.model_config import ModelConfig
from trainer.pretrained.rope import rope_of, rope_parameters, rotary
from trainer.symbolic.errors import UserError
from trainer.warm_start_rules import TensorRule

_FULL, _SLIDING = 'full_attention', 'sliding_attention'
_NORMS = {
    'attention_norm': 'input_layernorm',
    'attention_norm_after': 'post_attention_layernorm',
    'feed_forward_norm': 'pre_feedforward_layernorm',
    'feed_forward_norm_after': 'post_feedforward_layernorm',
}
_RULES = (
    TensorRule(r'embedding\.table', 'model.embed_tokens.weight'),
    TensorRule(r'final_norm\.scale', 'model.norm.weight'),
    TensorRule(r'head\.kernel', 'lm_head.weight', 'transpose'),
    *(
        TensorRule(rf'{llama.BLOCK}{here}\.scale', f'{llama.LAYER}{there}.weight')
        for here, there in _NORMS.items()
    ),
    *llama.PROJECTIONS,
    *llama.GATED,
)
_QK_NORMS = tuple(
    TensorRule(
        rf'{llama.BLOCK}attention\.{here}_norm\.scale',
        f'{llama.LAYER}self_attn.{here[0]}_norm.weight',
    )
    for here in ('query', 'key')
)


def layers_of(blocks: Sequence[TransformerBlock]) -> Stack:
    """The stack of blocks, whose list has one period where they repeat themselves.

    Example:
        >>> one, other = (TransformerBlock(Attention(n), GatedFeedForward()) for n in (1, 2))
        >>> stack = layers_of([one, other, one, other])
        >>> len(stack.layers), stack.repeats
        (2, 2)
    """
    for length in range(1, len(blocks) + 1):
        repeats = len(blocks) // length
        if list(blocks) == list(blocks[:length]) * repeats:
            return Stack([block.clone(deep=True) for block in blocks[:length]], repeats=repeats)
    raise ValueError('a model has layers')


def _kinds(config: ModelConfig, period: int) -> list[str]:
    """The kind of attention of each layer."""
    count = config.get('num_hidden_layers', int)
    period = config.get('sliding_window_pattern', int, period)
    period = config.get('_sliding_window_pattern', int, period)
    usual = [_SLIDING if (i + 1) % period else _FULL for i in range(count)]
    kinds = list(config.get('layer_types', list, usual))
    if len(kinds) != count or not {*kinds} <= {_FULL, _SLIDING}:
        raise UserError(
            f'{config.file}: layer_types must have {_FULL} or {_SLIDING} for each of the {count} '
            f'layers, not {kinds}'
        )
    return kinds


def _model(
    config: ModelConfig,
    kinds: Sequence[str],
    positions: Mapping[str, Rotary],
    qk_norm: RMSNorm | None = None,
) -> TransformerLm:
    config.require('attention_bias', False)
    config.require('attention_dropout', 0.0)
    config.require('use_bidirectional_attention', None, False)
    config.ignore('hidden_act', 'cache_implementation', 'sliding_window_size')
    dims, epsilon = config.get('hidden_size', int), config.get('rms_norm_eps', float, 1e-6)
    window, vocab_size = config.get('sliding_window', int, 4096), config.get('vocab_size', int)

    def block(kind: str) -> TransformerBlock:
        attention = Attention(
            num_heads=config.get('num_attention_heads', int),
            head_dim=config.get('head_dim', int, 256),
            num_kv_heads=config.get('num_key_value_heads', int),
            position=positions[kind],
            window=window if kind == _SLIDING else None,
            softmax_scale=config.get('query_pre_attn_scalar', float, 256.0) ** -0.5,
            logit_cap=config.optional('attn_logit_softcapping', float),
            qk_norm=qk_norm,
        )
        feed_forward = GatedFeedForward(
            config.get('intermediate_size', int),
            activation=llama.activation_of(config, 'hidden_activation', 'gelu_pytorch_tanh'),
        )
        norms = RMSNorm(epsilon), RMSNorm(epsilon)
        return TransformerBlock(attention, feed_forward, *norms, norm_policy='primer_hybrid')

    tied = config.get('tie_word_embeddings', bool, True)
    return TransformerLm(
        embedding=Embedding(vocab_size, dims),
        stack=layers_of([block(kind) for kind in kinds]),
        final_norm=RMSNorm(epsilon),
        head=None if tied else Linear(vocab_size, axes=['embed', 'vocab']),
        logits_cap=config.optional('final_logit_softcapping', float),
    )


def _gemma2(config: ModelConfig) -> TransformerLm:
    position = rope_of(config)
    return _model(config, _kinds(config, 2), {_FULL: position, _SLIDING: position})


def _gemma3(config: ModelConfig) -> TransformerLm:
    if found := config.get('rope_parameters', dict, {}):
        if {*found} != {_FULL, _SLIDING}:
            raise UserError(
                f'{config.file}: rope_parameters must have {_FULL} and {_SLIDING}, not '
                f'{", ".join(sorted(found))}'
            )
        positions = {kind: rotary(config, found[kind]) for kind in (_FULL, _SLIDING)}
        config.ignore('rope_theta', 'rope_scaling', 'rope_local_base_freq')
    else:  # Former files: the scaling is that of layers without a window.
        local = config.get('rope_local_base_freq', float, 10_000.0)
        theta, scaling = config.get('rope_theta', float, 1e6), config.get('rope_scaling', dict, {})
        positions = {
            _FULL: rotary(config, {'rope_theta': theta, **scaling}),
            _SLIDING: rotary(config, {'rope_theta': local}),
        }
    norm = RMSNorm(config.get('rms_norm_eps', float, 1e-6))
    return _model(config, _kinds(config, 6), positions, norm)


def _config(model: TransformerLm, has_kinds: bool) -> dict[str, Any]:
    blocks = [*model.stack.layers] * model.stack.repeats
    kinds = [_SLIDING if block.attention.window is not None else _FULL for block in blocks]
    of_kind = {kind: block.attention for kind, block in zip(kinds, blocks, strict=True)}
    some = blocks[0].attention
    scalar = (some.softmax_scale or some.head_dim**-0.5) ** -2
    ropes = {kind: rope_parameters(each.position) for kind, each in of_kind.items()}
    missing = next(iter(ropes.values()))  # Gemma 3 has both kinds in its fields.
    return {
        'vocab_size': model.vocab_size,
        'hidden_size': model.embedding.dims,
        'intermediate_size': blocks[0].feed_forward.hidden_dims,
        'num_hidden_layers': len(blocks),
        'num_attention_heads': some.num_heads,
        'num_key_value_heads': some.num_kv_heads or some.num_heads,
        'head_dim': some.head_dim,
        'hidden_activation': llama.activation_name(blocks[0].feed_forward.activation),
        'rms_norm_eps': float(blocks[0].attention_norm.epsilon),
        'tie_word_embeddings': model.head is None,
        'layer_types': kinds,
        'sliding_window': of_kind[_SLIDING].window if _SLIDING in of_kind else 4096,
        'query_pre_attn_scalar': round(scalar) if abs(scalar - round(scalar)) < 1e-9 else scalar,
        'attn_logit_softcapping': some.logit_cap,
        'final_logit_softcapping': model.logits_cap,
        'rope_parameters': {kind: ropes.get(kind, missing) for kind in (_SLIDING, _FULL)}
        if has_kinds
        else missing,
    }


def _family(
    architecture: str,
    model_type: str,
    model: Callable[[ModelConfig], TransformerLm],
    *rules: TensorRule,
    has_kinds: bool = False,
) -> Family:
    return Family(
        architecture,
        model_type,
        (*_RULES, *rules),
        model,
        lambda made: _config(made, has_kinds),
        (r'.*\.inv_freq', r'lm_head\.weight'),
    )


FAMILIES = (
    _family('Gemma2ForCausalLM', 'gemma2', _gemma2),
    _family('Gemma3ForCausalLM', 'gemma3_text', _gemma3, *_QK_NORMS, has_kinds=True),
)
