"""An example of every layer, with what it is called with."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from trainer.layers import (
    LSTM,
    RGLRU,
    Activate,
    Alibi,
    Attention,
    BasicBlock,
    BatchNorm,
    BottleneckBlock,
    Chain,
    ChoiceLayer,
    Conv2D,
    CrossAttention,
    DecoderBlock,
    DepthwiseConv1D,
    Dropout,
    Embedding,
    Experts,
    FeedForward,
    Flatten,
    GatedDeltaNet,
    GatedFeedForward,
    Gaussian,
    GlobalPool,
    GroupNorm,
    Identity,
    InvertedBottleneck,
    LargeStem,
    LatentAttention,
    Layer,
    LayerNorm,
    LeakyRelu,
    LearnedPositions,
    Linear,
    LinenAdapter,
    LlamaScaling,
    Mamba2,
    Memory,
    Mlp,
    NnxAdapter,
    Pool2D,
    Positions,
    RelativeBias,
    Residual,
    ResNet,
    RMSNorm,
    Rotary,
    SequencePool,
    SharedWithPrevious,
    SinusoidalPositions,
    SmallStem,
    Stack,
    TextClassifier,
    TokenTypes,
    TransformerBlock,
    TransformerEncoderDecoder,
    TransformerLm,
    VisionTransformer,
)

X_BTD = jax.random.normal(jax.random.key(7), (2, 6, 8))
X_BHWC = jax.random.normal(jax.random.key(8), (2, 8, 8, 8))
IMAGES = jax.random.uniform(jax.random.key(9), (2, 8, 8, 3))
IDS = jnp.array([[1, 2, 3, 4, 5, 0], [5, 4, 3, 2, 1, 0]])
POSITIONS = Positions.unpacked((2, 6))
MEMORY = Memory(X_BTD[:, ::-1])


class Convolutional(nn.Module):
    """Of flax linen: a convolution, batch normalization and dropout."""

    channels: int
    train: bool

    @nn.compact
    def __call__(self, x: Any) -> Any:
        init = nn.with_logical_partitioning(
            nn.initializers.lecun_normal(), (None, None, 'channels', 'mlp')
        )
        x = nn.Conv(self.channels, (3, 3), use_bias=False, kernel_init=init)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not self.train, momentum=0.9)(x))
        x = nn.Dropout(0.2, deterministic=not self.train)(x.mean((1, 2)))
        return nn.Dense(10)(x)


class OfLinen(LinenAdapter):
    """`Convolutional` as a layer."""

    channels: int = 8

    def make(self) -> nn.Module:
        return Convolutional(self.channels, train=self.training)


class Perceptron(nnx.Module):
    """Of flax nnx: two linear layers, with batch normalization and dropout between them."""

    def __init__(self, inputs: int, dims: int, dtype: Any, rngs: nnx.Rngs):
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ('embed', 'mlp'))
        self.layers = nnx.List(
            [
                nnx.Linear(inputs, dims, use_bias=False, kernel_init=init, rngs=rngs),
                nnx.Linear(dims, 10, rngs=rngs),
            ]
        )
        self.norm = nnx.BatchNorm(dims, momentum=0.9, dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.dropout(nnx.relu(self.norm(self.layers[0](x))))
        return self.layers[1](x)


class OfNnx(NnxAdapter):
    """`Perceptron` as a layer, for the features of an example in one axis."""

    inputs: int = 192
    dims: int = 16

    def make(self, rngs: nnx.Rngs) -> nnx.Module:
        return Perceptron(self.inputs, self.dims, self.dtype, rngs)

    def forward(self, x: jax.Array) -> Any:
        return self.run(x.reshape(len(x), -1))


class Example(NamedTuple):
    """A layer and its arguments, all of which have examples as their first axis.

    Attributes:
        layer: the layer.
        args: what it is called with.
        is_float32: its results are float32 whatever layers compute in.
    """

    layer: Layer
    args: tuple[Any, ...]
    is_float32: bool = False


def block(mask: str = 'causal') -> TransformerBlock:
    """Of width 8."""
    return TransformerBlock(Attention(2, mask=mask), FeedForward(8))


def decoder_block() -> DecoderBlock:
    """Of width 8."""
    return DecoderBlock(
        attention=Attention(2), feed_forward=FeedForward(8), cross_attention=CrossAttention(2)
    )


def encoder_decoder(**fields: Any) -> TransformerEncoderDecoder:
    """Of width 8, for 6 tokens."""
    return TransformerEncoderDecoder(
        embedding=Embedding(6, 8),
        encoder=Stack([block('full')], repeats=2),
        decoder=Stack([decoder_block()], repeats=2),
        **fields,
    )


def vision_transformer(**fields: Any) -> VisionTransformer:
    """Of width 8, for patches of 4×4 pixels."""
    layer = TransformerBlock(Attention(2, mask='full', position='none'), FeedForward(8))
    return VisionTransformer(num_classes=10, patch_size=4, dims=8, stack=Stack([layer]), **fields)


def resnet(**fields: Any) -> ResNet:
    """For small images, with two stages of one block each."""
    return ResNet(
        num_classes=10, **{'stage_sizes': [1, 1], 'width': 8, 'stem': SmallStem()} | fields
    )


EXAMPLES = {
    'activate': Example(Activate('gelu'), (X_BTD,)),
    'attention': Example(Attention(2, num_kv_heads=1), (X_BTD,)),
    'attention with a cap': Example(
        Attention(2, logit_cap=2.0, per_dim_scale=True, init=Gaussian(0.3)), (X_BTD,)
    ),
    'attention of normalized heads': Example(
        Attention(2, qk_norm=RMSNorm(), softmax_scale=0.4, bias=['query', 'value']), (X_BTD,)
    ),
    'attention with convolutions': Example(
        Attention(
            2,
            query_convolution=DepthwiseConv1D(),
            key_convolution=DepthwiseConv1D(),
            value_convolution=DepthwiseConv1D(2),
        ),
        (X_BTD,),
    ),
    'attention with a learned bias': Example(
        Attention(2, position=RelativeBias(4, max_distance=3), logit_cap=2.0), (X_BTD,)
    ),
    'attention with slopes': Example(Attention(2, position=Alibi(), window=2), (X_BTD,)),
    'attention with turned halves': Example(
        Attention(2, head_dim=8, position=Rotary(fraction=0.5, scaling=LlamaScaling())), (X_BTD,)
    ),
    'attention of one kernel': Example(Attention(2, num_kv_heads=1, combine_qkv=True), (X_BTD,)),
    'attention with sinks': Example(Attention(2, sinks=True), (X_BTD,)),
    'basic block': Example(BasicBlock(), (X_BHWC, 16, 2)),
    'batch norm': Example(BatchNorm(), (X_BHWC,)),
    'bottleneck block': Example(BottleneckBlock(), (X_BHWC, 4, 1)),
    'chain': Example(Chain([Conv2D(4), Flatten(), Linear(3)]), (IMAGES,), True),
    'choice': Example(ChoiceLayer([Identity(), Residual(FeedForward(8))], choice=1), (X_BTD,)),
    'convolution': Example(Conv2D(4, strides=[2, 1], padding='VALID', bias='zeros'), (IMAGES,)),
    'cross-attention': Example(CrossAttention(2), (X_BTD, POSITIONS, MEMORY)),
    'decoder block': Example(decoder_block(), (X_BTD, POSITIONS, MEMORY)),
    'depthwise convolution': Example(Conv2D(8, groups=None), (X_BHWC,)),
    'depthwise convolution of sequences': Example(DepthwiseConv1D(), (X_BTD,)),
    'dropout': Example(Dropout(0.1), (X_BTD,)),
    'embedding': Example(Embedding(6, 8), (IDS,)),
    'encoder': Example(
        TransformerLm(
            Embedding(6, 8, scale_sqrt_depth=False),
            Stack([TransformerBlock(Attention(2, mask='full'), FeedForward(8))]),
            token_types=TokenTypes(2, separator=3),
            embedding_norm=LayerNorm(),
            transform=Chain([Linear(8, 'zeros'), Activate('gelu_exact')]),
            shared_head_bias='zeros',
        ),
        (IDS,),
        True,
    ),
    'encoder-decoder': Example(encoder_decoder(dropout=Dropout(0.1)), (IDS, IDS), True),
    'experts': Example(Experts(4, 8), (X_BTD,)),
    'experts with places': Example(
        Experts(3, 8, gated=False, capacity_factor=1.0, shared=FeedForward(8)), (X_BTD,)
    ),
    'feed-forward': Example(FeedForward(8, dropout=Dropout(0.1)), (X_BTD,)),
    'feed-forward with a ratio': Example(GatedFeedForward(hidden_ratio=1.5), (X_BTD,)),
    'feed-forward with biases': Example(
        FeedForward(8, 'squared_relu', bias='zeros', init=Gaussian(0.3)), (X_BTD,)
    ),
    'flatten': Example(Flatten(), (X_BHWC,)),
    'gated deltanet': Example(GatedDeltaNet(2), (X_BTD,)),
    'gated feed-forward': Example(GatedFeedForward(8), (X_BTD,)),
    'global pool': Example(GlobalPool(), (X_BHWC,)),
    'group norm': Example(GroupNorm(num_groups=2), (X_BHWC,)),
    'identity': Example(Identity(), (X_BTD,)),
    'inverted bottleneck': Example(InvertedBottleneck(channels=8, kernel_size=5), (X_BHWC,)),
    'inverted bottleneck with a stride': Example(
        InvertedBottleneck(channels=4, expansion=1.5, stride=2, activation='gelu'), (X_BHWC,)
    ),
    'large stem': Example(LargeStem(), (IMAGES, 8)),
    'latent attention': Example(LatentAttention(2, latent_dims=4, query_latent_dims=6), (X_BTD,)),
    'layer norm': Example(LayerNorm(), (X_BTD,)),
    'leaky relu': Example(LeakyRelu(0.3), (X_BTD,)),
    'learned positions': Example(LearnedPositions(6), (IDS, 8)),
    'linear': Example(Linear(4, bias='zeros'), (X_BTD,), True),
    'linen': Example(OfLinen(), (IMAGES,)),
    'local attention': Example(Attention(2, window=2, logit_cap=2.0), (X_BTD,)),
    'lstm': Example(LSTM(), (X_BTD,)),
    'mamba-2': Example(Mamba2(head_dim=4, state_dims=4), (X_BTD,)),
    'mlp': Example(Mlp([8, 8], 4, dropout=Dropout(0.1)), (X_BTD,), True),
    'nnx': Example(OfNnx(), (IMAGES,)),
    'pool': Example(Pool2D('average', padding='SAME', window=[3, 3]), (X_BHWC,)),
    'primer residual': Example(Residual(FeedForward(8), norm_policy='primer_hybrid'), (X_BTD,)),
    'residual': Example(Residual(FeedForward(8)), (X_BTD,)),
    'resnet': Example(resnet(block=BottleneckBlock(expansion=2)), (IMAGES,), True),
    'rg-lru': Example(RGLRU(2), (X_BTD,)),
    'rms norm': Example(RMSNorm(), (X_BTD,)),
    'sequence pool': Example(SequencePool(num_segments=1), (X_BTD, POSITIONS)),
    'shared layers': Example(
        Stack([block(), SharedWithPrevious()], repeats=2, scan='always'), (X_BTD,)
    ),
    'sinusoidal positions': Example(SinusoidalPositions(), (IDS, 8)),
    'small stem': Example(SmallStem(norm=GroupNorm(num_groups=4)), (IMAGES, 8)),
    'stack': Example(Stack([block()], repeats=2, scan='always'), (X_BTD,)),
    'text classifier': Example(
        TextClassifier(
            Embedding(6, 8), Stack([block('full')]), head=Linear(4), pool=SequencePool('max')
        ),
        (IDS,),
        True,
    ),
    'text classifier with a pooler': Example(
        TextClassifier(
            Embedding(6, 8),
            Stack([block('full')]),
            None,
            head=Linear(4),
            pool=SequencePool('first'),
            pooler=Chain([Linear(8, 'zeros'), Activate('tanh')]),
        ),
        (IDS,),
        True,
    ),
    'token types': Example(TokenTypes(2, separator=3), (IDS, 8)),
    'transformer block': Example(block(), (X_BTD,)),
    'transformer': Example(TransformerLm(Embedding(6, 8), Stack([block()])), (IDS,), True),
    'transformer with caps': Example(
        TransformerLm(
            Embedding(6, 8, scale_sqrt_depth=False, init=Gaussian(0.3)),
            Stack([TransformerBlock(Attention(2, position='none', bias='zeros'), FeedForward(8))]),
            position_embedding=SinusoidalPositions(),
            logits_cap=3.0,
        ),
        (IDS,),
        True,
    ),
    'vision transformer': Example(
        vision_transformer(pool='class_token', patch_bias='zeros'), (IMAGES,), True
    ),
}
