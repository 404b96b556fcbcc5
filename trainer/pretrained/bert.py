"""BERT: token types, LayerNorm after each residual connection. Masked and classifying models."""

import dataclasses
import json
from typing import Any

from absl import logging

from trainer.layers.chain import Activate, Chain
from trainer.layers.dropout import Dropout
from trainer.layers.embedding import Embedding
from trainer.layers.linear import Linear
from trainer.layers.normalization import LayerNorm
from trainer.layers.pooling import SequencePool
from trainer.layers.position_embedding import LearnedPositions
from trainer.layers.stack import Stack
from trainer.layers.text_classifier import TextClassifier
from trainer.layers.token_types import TokenTypes
from trainer.layers.transformer import TransformerLm
from trainer.pretrained import biased, llama
from trainer.pretrained.family import Family
from trainer.pretrained.model_config import ModelConfig
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError
from trainer.warm_start_rules import TensorRule

_LAYER = r'bert.encoder.layer.\1.'
_RULES = (
    TensorRule(r'embedding\.table', 'bert.embeddings.word_embeddings.weight'),
    TensorRule(r'position_embedding\.table', 'bert.embeddings.position_embeddings.weight'),
    TensorRule(r'token_types\.table', 'bert.embeddings.token_type_embeddings.weight'),
    *biased.norm_rules('embedding_norm', 'bert.embeddings.LayerNorm'),
    *biased.attention_rules(_LAYER, 'attention.self.', 'attention.output.dense'),
    *biased.block_rules(
        _LAYER,
        attention_norm='attention.output.LayerNorm',
        up='intermediate.dense',
        down='output.dense',
        feed_forward_norm='output.LayerNorm',
    ),
    *biased.linear_rules(r'transform\.layers_0', 'cls.predictions.transform.dense'),
    *biased.norm_rules('final_norm', 'cls.predictions.transform.LayerNorm'),
    TensorRule('head_bias', 'cls.predictions.bias'),
    *biased.linear_rules(r'pooler\.layers_0', 'bert.pooler.dense'),
    *biased.linear_rules('head', 'classifier'),
)


def _encoder(config: ModelConfig) -> dict[str, Any]:
    """Fields that the models share."""
    config.require('position_embedding_type', 'absolute')
    for name in ('is_decoder', 'add_cross_attention'):
        config.require(name, False)
    config.require('tie_word_embeddings', True)
    config.ignore('gradient_checkpointing')
    dims = config.get('hidden_size', int)
    block = biased.encoder_block(config, {'bias': 'zeros'}, norm_policy='post_skip')
    return {
        'embedding': Embedding(config.get('vocab_size', int), dims, scale_sqrt_depth=False),
        'stack': Stack([block], repeats=config.get('num_hidden_layers', int)),
        'dropout': biased.dropout_of(config, 'hidden_dropout_prob'),
        'position_embedding': LearnedPositions(config.get('max_position_embeddings', int, 512)),
        'token_types': TokenTypes(config.get('type_vocab_size', int, 2), _separator(config)),
        'embedding_norm': LayerNorm(config.get('layer_norm_eps', float, 1e-12)),
    }


def special_token(directory: JobPath, token: str) -> int | None:
    """The id of a special token such as '[MASK]' in a directory; None without one."""
    words, tokenizer = directory / 'vocab.txt', directory / 'tokenizer.json'
    if tokenizer.exists():
        try:
            added = json.loads(tokenizer.read_text())['added_tokens']
            return next((int(each['id']) for each in added if each['content'] == token), None)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f'{tokenizer}: added_tokens cannot be read ({error!r})') from error
    lines = words.read_text().splitlines() if words.exists() else []
    return lines.index(token) if token in lines else None


def _separator(config: ModelConfig) -> int | None:
    """The token between the sentences of a pair, of `sep_token_id` or the vocabulary beside."""
    if (found := config.optional('sep_token_id', int)) is not None:
        return found
    if config.directory is None:
        return None
    if (found := special_token(config.directory, '[SEP]')) is None:
        logging.warning(
            '%s: neither tokenizer.json nor vocab.txt beside it has [SEP], so all tokens have the '
            'type 0. Set task.model.token_types.separator for pairs of sentences',
            config.file,
        )
    return found


def _masked(config: ModelConfig) -> TransformerLm:
    config.ignore('classifier_dropout', 'id2label', 'label2id')
    dims, epsilon = config.get('hidden_size', int), config.get('layer_norm_eps', float, 1e-12)
    activation = llama.activation_of(config, 'hidden_act', 'gelu')
    return TransformerLm(
        **_encoder(config),
        transform=Chain([Linear(dims, 'zeros'), Activate(activation)]),
        final_norm=LayerNorm(epsilon),
        shared_head_bias='zeros',
    )


def _classifier(config: ModelConfig) -> TextClassifier:
    usual = config.get('hidden_dropout_prob', float, 0.0)
    rate = config.get('classifier_dropout', float, usual)
    layers = [Linear(config.get('hidden_size', int), 'zeros'), Activate('tanh')]
    return TextClassifier(
        **_encoder(config),
        final_norm=None,
        head=Linear(biased.num_labels(config), 'zeros', axes=['embed', 'classes']),
        pool=SequencePool('first'),
        pooler=Chain([*layers, Dropout(rate)] if rate else layers),
    )


def _config(model: TransformerLm) -> dict[str, Any]:
    positions, types = model.position_embedding, model.token_types
    found = {
        'vocab_size': model.vocab_size,
        'hidden_size': model.embedding.dims,
        **biased.encoder_config(model.stack),
        'tie_word_embeddings': True,
    }
    if isinstance(positions, LearnedPositions):
        found['max_position_embeddings'] = positions.max_length
    if types is not None:
        found |= {'type_vocab_size': types.num_types, 'sep_token_id': types.separator}
    if isinstance(model, TextClassifier):
        found |= biased.labels_config(model.head.output_dims)
        rates = [x.rate for x in getattr(model.pooler, 'layers', []) if isinstance(x, Dropout)]
        found['classifier_dropout'] = float(rates[0]) if rates else 0.0
    return found


_MASKED = Family(
    'BertForMaskedLM',
    'bert',
    _RULES,
    _masked,
    _config,
    # Heads of the first training, which the other models leave out, and numbers of positions.
    (r'cls\..*', r'bert\.pooler\..*', r'bert\.embeddings\.position_ids'),
    (
        (r'((embeddings|encoder|pooler)\..*)', r'bert.\1'),
        (r'(.*LayerNorm\.)gamma', r'\1weight'),
        (r'(.*LayerNorm\.)beta', r'\1bias'),
    ),
)
FAMILIES = (
    _MASKED,
    dataclasses.replace(_MASKED, architecture='BertForPreTraining'),
    dataclasses.replace(_MASKED, architecture='BertForSequenceClassification', model=_classifier),
)
