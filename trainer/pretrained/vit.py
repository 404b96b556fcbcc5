"""ViT: a class token before patches, learned positions, LayerNorm before each branch."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from trainer.layers.normalization import LayerNorm
from trainer.layers.stack import Stack
from trainer.layers.vision_transformer import VisionTransformer
from trainer.pretrained import biased
from trainer.pretrained.family import Family
from trainer.pretrained.model_config import ModelConfig
from trainer.symbolic.errors import UserError
from trainer.warm_start_rules import TensorRule

_LAYER, _PATCHES = r'vit.encoder.layer.\1.', 'vit.embeddings.patch_embeddings.projection'
_RULES = (
    TensorRule('patches_kernel', f'{_PATCHES}.weight', 'patches'),
    TensorRule('patches_bias', f'{_PATCHES}.bias'),
    TensorRule('class_token', 'vit.embeddings.cls_token', 'row'),
    TensorRule('positions', 'vit.embeddings.position_embeddings', 'row'),
    *biased.attention_rules(_LAYER, 'attention.attention.', 'attention.output.dense'),
    *biased.block_rules(
        _LAYER,
        attention_norm='layernorm_before',
        feed_forward_norm='layernorm_after',
        up='intermediate.dense',
        down='output.dense',
    ),
    *biased.norm_rules('final_norm', 'vit.layernorm'),
    *biased.linear_rules('head', 'classifier', '_kernel', '_bias'),
)


def _model(config: ModelConfig) -> VisionTransformer:
    # Images have the size that positions allow.
    config.ignore('image_size', 'num_channels', 'encoder_stride', 'pooler_act')
    config.ignore('pooler_output_size')
    has_bias = config.get('qkv_bias', bool, True)
    attention = {'bias': 'zeros' if has_bias else ['output']}
    block = biased.encoder_block(config, attention)
    return VisionTransformer(
        num_classes=biased.num_labels(config),
        patch_size=config.get('patch_size', int, 16),
        dims=config.get('hidden_size', int),
        stack=Stack([block], repeats=config.get('num_hidden_layers', int)),
        pool='class_token',
        final_norm=LayerNorm(config.get('layer_norm_eps', float, 1e-12)),
        dropout=biased.dropout_of(config, 'hidden_dropout_prob'),
        patch_bias='zeros',
    )


def _config(model: VisionTransformer) -> dict[str, Any]:
    return {
        'hidden_size': model.dims,
        'patch_size': model.patch_size,
        'qkv_bias': model.stack.layers[0].attention.bias == 'zeros',
        **biased.encoder_config(model.stack),
        **biased.labels_config(model.num_classes),
    }


def _image(model: Any) -> tuple[Any, ...]:
    size = 2 * model.patch_size
    return (jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32),)


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    patch_size, _, channels, _ = shapes['patches_kernel']
    patches = shapes['positions'][0] - 1
    side = math.isqrt(patches)
    if side**2 != patches:
        raise UserError(
            f'task.model.positions are of {patches} patches, but images of ViT are square'
        )
    return {'image_size': side * patch_size, 'num_channels': channels}


FAMILIES = (
    Family(
        'ViTForImageClassification',
        'vit',
        _RULES,
        _model,
        _config,
        (r'vit\.pooler\..*', 'vit.embeddings.mask_token'),
        ((r'((embeddings|encoder|layernorm|pooler)\..*)', r'vit.\1'),),
        _image,
        _sizes,
    ),
)
