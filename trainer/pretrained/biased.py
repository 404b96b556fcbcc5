"""Parts that GPT-2, BERT and ViT share: biases everywhere, LayerNorm, dropout."""

from typing import Any

from absl import logging

from trainer.layers.attention import Attention
from trainer.layers.dropout import Dropout
from trainer.layers.feed_forward import FeedForward
from trainer.layers.normalization import LayerNorm
from trainer.layers.transformer import TransformerBlock
from trainer.pretrained import llama
from trainer.pretrained.model_config import ModelConfig
from trainer.warm_start_rules import Operation, TensorRule


def norm_rules(here: str, there: str) -> list[TensorRule]:
    """The rules of a LayerNorm."""
    return [
        TensorRule(rf'{here}\.scale', f'{there}.weight', 'minus_one'),
        TensorRule(rf'{here}\.bias', f'{there}.bias'),
    ]


def linear_rules(
    here: str, there: str, kernel: str = r'\.kernel', bias: str = r'\.bias'
) -> list[TensorRule]:
    """The rules of a linear layer of torch.

    Args:
        kernel: the end of the name of the kernel here.
        bias: the same of the bias.
    """
    return [
        TensorRule(here + kernel, f'{there}.weight', 'transpose'),
        TensorRule(here + bias, f'{there}.bias'),
    ]


def attention_rules(layer: str, query_key_value: str, output: str) -> list[TensorRule]:
    """The rules of the attention of an encoder.

    Args:
        layer: the name of a layer there, with a reference to its number.
        query_key_value: the name of the projections below, up to 'query', 'key' and 'value'.
        output: the name of the projection after them.
    """
    ways: dict[str, tuple[str, Operation, Operation]] = {
        name: (query_key_value + name, 'to_heads', 'split_heads')
        for name in ('query', 'key', 'value')
    }
    ways['output'] = output, 'from_heads', 'same'
    return [
        rule
        for here, (there, of_kernel, of_bias) in ways.items()
        for rule in (
            TensorRule(rf'{llama.BLOCK}attention\.{here}', f'{layer}{there}.weight', of_kernel),
            TensorRule(rf'{llama.BLOCK}attention\.{here}_bias', f'{layer}{there}.bias', of_bias),
        )
    ]


def block_rules(layer: str, **names: str) -> list[TensorRule]:
    """The rules of norms and of feed-forward layers; `names` are those there, by ours."""
    rules: list[TensorRule] = []
    for here, there in names.items():
        if here.endswith('norm'):
            rules += norm_rules(llama.BLOCK + here, layer + there)
        else:
            rules += linear_rules(rf'{llama.BLOCK}feed_forward\.{here}', layer + there, '', '_bias')
    return rules


def dropout_of(config: ModelConfig, name: str) -> Dropout | None:
    """The dropout of a field; None for none."""
    rate = config.get(name, float, 0.0)
    return Dropout(rate) if rate else None


def rate_of(dropout: Dropout | None) -> float:
    """The way back."""
    return 0.0 if dropout is None else float(dropout.rate)


def no_attention_dropout(config: ModelConfig, name: str) -> None:
    """Logs that training has no dropout of attention weights, where the field has a rate."""
    if rate := config.get(name, float, 0.0):
        logging.warning(
            '%s: %s is %s, but training applies no dropout to attention weights. All other '
            'dropout stays',
            config.file,
            name,
            rate,
        )


def encoder_block(config: ModelConfig, attention: dict[str, Any], **fields: Any) -> Any:
    """A block of BERT or ViT."""
    no_attention_dropout(config, 'attention_probs_dropout_prob')
    epsilon = config.get('layer_norm_eps', float, 1e-12)
    feed_forward = FeedForward(
        config.get('intermediate_size', int),
        activation=llama.activation_of(config, 'hidden_act', 'gelu'),
        bias='zeros',
    )
    return TransformerBlock(
        Attention(
            config.get('num_attention_heads', int), mask='full', position='none', **attention
        ),
        feed_forward,
        LayerNorm(epsilon),
        LayerNorm(epsilon),
        dropout_of(config, 'hidden_dropout_prob'),
        **fields,
    )


def encoder_config(stack: Any) -> dict[str, Any]:
    """The way back: fields of the blocks of a stack."""
    block = stack.layers[0]
    return {
        'num_hidden_layers': len(stack.layers) * stack.repeats,
        'num_attention_heads': block.attention.num_heads,
        'intermediate_size': block.feed_forward.hidden_dims,
        'hidden_act': llama.activation_name(block.feed_forward.activation),
        'layer_norm_eps': float(block.attention_norm.epsilon),
        'hidden_dropout_prob': rate_of(block.dropout),
        'attention_probs_dropout_prob': 0.0,
    }


def num_labels(config: ModelConfig) -> int:
    """The number of classes."""
    config.ignore('label2id')
    return len(config.get('id2label', dict, {0: '', 1: ''}))


def labels_config(count: int) -> dict[str, Any]:
    """The way back."""
    names = {i: f'LABEL_{i}' for i in range(count)}
    return {'id2label': names, 'label2id': {name: i for i, name in names.items()}}
