"""Layers and the models made of them, and adapters for modules of flax.

Losses, metrics and decoders live elsewhere: a layer maps arrays to arrays. `NnxAdapter` is imported
at its first use, since nnx takes half a second.
"""

from etils import epy

from trainer.layers.activations import ActivationFunction as ActivationFunction
from trainer.layers.activations import LeakyRelu as LeakyRelu
from trainer.layers.attention import Attention as Attention
from trainer.layers.attention_position import AttentionPosition as AttentionPosition
from trainer.layers.base import Layer as Layer
from trainer.layers.batch_norm import BatchNorm as BatchNorm
from trainer.layers.chain import Activate as Activate
from trainer.layers.chain import Chain as Chain
from trainer.layers.chain import Flatten as Flatten
from trainer.layers.check import check_mixer as check_mixer
from trainer.layers.choice import ChoiceLayer as ChoiceLayer
from trainer.layers.convolution import Conv2D as Conv2D
from trainer.layers.cross_attention import CrossAttention as CrossAttention
from trainer.layers.cross_attention import Memory as Memory
from trainer.layers.declared_flops import counted_products as counted_products
from trainer.layers.declared_flops import declared_flops as declared_flops
from trainer.layers.depthwise import DepthwiseConv1D as DepthwiseConv1D
from trainer.layers.dropout import Dropout as Dropout
from trainer.layers.embedding import Embedding as Embedding
from trainer.layers.encoder_decoder import DecoderBlock as DecoderBlock
from trainer.layers.encoder_decoder import TransformerEncoderDecoder as TransformerEncoderDecoder
from trainer.layers.experts import Experts as Experts
from trainer.layers.feed_forward import FeedForward as FeedForward
from trainer.layers.feed_forward import GatedFeedForward as GatedFeedForward
from trainer.layers.future_tokens import FutureTokens as FutureTokens
from trainer.layers.gated_delta_net import GatedDeltaNet as GatedDeltaNet
from trainer.layers.group_norm import GroupNorm as GroupNorm
from trainer.layers.image_classifier import ImageClassifier as ImageClassifier
from trainer.layers.initialization import DeltaOrthogonal as DeltaOrthogonal
from trainer.layers.initialization import Filled as Filled
from trainer.layers.initialization import Gaussian as Gaussian
from trainer.layers.initialization import Initializer as Initializer
from trainer.layers.initialization import TruncatedGaussian as TruncatedGaussian
from trainer.layers.initialization import Uniform as Uniform
from trainer.layers.initialization import Xavier as Xavier
from trainer.layers.inverted_bottleneck import InvertedBottleneck as InvertedBottleneck
from trainer.layers.latent_attention import LatentAttention as LatentAttention
from trainer.layers.linear import Linear as Linear
from trainer.layers.linen_adapter import LinenAdapter as LinenAdapter
from trainer.layers.lora import LoRA as LoRA
from trainer.layers.lstm import LSTM as LSTM
from trainer.layers.mamba2 import Mamba2 as Mamba2
from trainer.layers.mlp import Mlp as Mlp
from trainer.layers.normalization import LayerNorm as LayerNorm
from trainer.layers.normalization import Normalization as Normalization
from trainer.layers.normalization import RMSNorm as RMSNorm
from trainer.layers.pipeline import Pipeline as Pipeline
from trainer.layers.pooling import GlobalPool as GlobalPool
from trainer.layers.pooling import Pool2D as Pool2D
from trainer.layers.pooling import SequencePool as SequencePool
from trainer.layers.position_embedding import LearnedPositions as LearnedPositions
from trainer.layers.position_embedding import PositionEmbedding as PositionEmbedding
from trainer.layers.position_embedding import SinusoidalPositions as SinusoidalPositions
from trainer.layers.positions import Positions as Positions
from trainer.layers.precision import Float8 as Float8
from trainer.layers.precision import Int8 as Int8
from trainer.layers.relative_position import Alibi as Alibi
from trainer.layers.relative_position import RelativeBias as RelativeBias
from trainer.layers.resnet import BasicBlock as BasicBlock
from trainer.layers.resnet import BottleneckBlock as BottleneckBlock
from trainer.layers.resnet import LargeStem as LargeStem
from trainer.layers.resnet import ResNet as ResNet
from trainer.layers.resnet import SmallStem as SmallStem
from trainer.layers.rg_lru import RGLRU as RGLRU
from trainer.layers.rotary import Rotary as Rotary
from trainer.layers.rotary_scaling import LinearScaling as LinearScaling
from trainer.layers.rotary_scaling import LlamaScaling as LlamaScaling
from trainer.layers.rotary_scaling import RotaryScaling as RotaryScaling
from trainer.layers.rotary_scaling import YarnScaling as YarnScaling
from trainer.layers.router import Router as Router
from trainer.layers.shared import SharedWithPrevious as SharedWithPrevious
from trainer.layers.stack import Stack as Stack
from trainer.layers.stack import per_layer as per_layer
from trainer.layers.stack import stacked as stacked
from trainer.layers.text_classifier import TextClassifier as TextClassifier
from trainer.layers.token_types import TokenTypes as TokenTypes
from trainer.layers.transformer import Identity as Identity
from trainer.layers.transformer import Residual as Residual
from trainer.layers.transformer import TransformerBlock as TransformerBlock
from trainer.layers.transformer import TransformerLm as TransformerLm
from trainer.layers.vision_transformer import VisionTransformer as VisionTransformer

with epy.lazy_api_imports(globals()):
    from trainer.layers.nnx_adapter import NnxAdapter as NnxAdapter
