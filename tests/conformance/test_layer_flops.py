"""FLOPs of every layer, against XLA's own count.

XLA counts the body of a scan once, so it gets the program with all scans unrolled. The sizes are
those of real models, so that products are nearly all of a layer. Nothing runs.
"""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.conformance.jaxprs import unrolled
from tests.conformance.layer_examples import EXAMPLES, Example, OfLinen, OfNnx
from tests.search_spaces.golden import all_components
from trainer import layers
from trainer.program.flops import flops

TOLERANCE = 0.05
"""Of XLA's count: it has elementwise operations, and leaves out the zeros around an image."""

EXPLAINED = {'small stem': 0.07}
"""Its convolution has 3 inputs, so the norm after it has 6 % as many operations."""

FEW = 10
"""Operations of an element, at most, in layers that count as free."""

B, T, D = 2, 128, 512
X_BTD = jax.ShapeDtypeStruct((B, T, D), jnp.float32)
X_BHWC = jax.ShapeDtypeStruct((B, 64, 64, 128), jnp.float32)
IMAGES = jax.ShapeDtypeStruct((B, 224, 224, 3), jnp.float32)
IDS = jax.ShapeDtypeStruct((B, T), jnp.int32)
SHAPES: Any = (IDS, X_BTD)
POSITIONS, MEMORY = layers.Positions(SHAPES[0]), layers.Memory(SHAPES[1])


def block(mask: str = 'causal', **fields: Any) -> layers.TransformerBlock:
    return layers.TransformerBlock(
        layers.Attention(8, mask=mask, **fields), layers.FeedForward(4 * D)
    )


def decoder_block() -> layers.DecoderBlock:
    return layers.DecoderBlock(
        attention=layers.Attention(8),
        feed_forward=layers.FeedForward(4 * D),
        cross_attention=layers.CrossAttention(8),
    )


def stack(*below: layers.Layer) -> layers.Stack:
    return layers.Stack([*below], repeats=2, scan='never')


PRODUCTS = {
    'convolution of sequences': Example(layers.DepthwiseConv1D(32), (X_BTD,)),
    'attention': Example(layers.Attention(8, num_kv_heads=2), (X_BTD,)),
    'attention of one kernel': Example(
        layers.Attention(8, num_kv_heads=2, combine_qkv=True, qk_norm=layers.RMSNorm()), (X_BTD,)
    ),
    'attention with sinks': Example(
        layers.Attention(8, num_kv_heads=2, sinks=True, softmax_scale=0.1), (X_BTD,)
    ),
    'attention with convolutions': Example(
        layers.Attention(
            8,
            query_convolution=layers.DepthwiseConv1D(),
            value_convolution=layers.DepthwiseConv1D(),
        ),
        (X_BTD,),
    ),
    'attention with a learned bias': Example(
        layers.Attention(8, position=layers.RelativeBias()), (X_BTD,)
    ),
    'attention with slopes': Example(
        layers.Attention(8, position=layers.Alibi(), window=32), (X_BTD,)
    ),
    'attention with turned halves': Example(
        layers.Attention(8, position=layers.Rotary(fraction=0.5)), (X_BTD,)
    ),
    'basic block': Example(layers.BasicBlock(), (X_BHWC, 128, 1)),
    'bottleneck block': Example(layers.BottleneckBlock(), (X_BHWC, 64, 1)),
    'chain': Example(layers.Chain([layers.Flatten(), layers.Linear(64)]), (IMAGES,)),
    'choice': Example(
        layers.ChoiceLayer([layers.FeedForward(4 * D), layers.FeedForward(4 * D)], choice=1),
        (X_BTD,),
    ),
    'convolution': Example(layers.Conv2D(64), (X_BHWC,)),
    'convolution in groups': Example(layers.Conv2D(64, groups=4), (X_BHWC,)),
    'convolution of each feature': Example(layers.Conv2D(128, groups=None), (X_BHWC,)),
    'cross-attention': Example(layers.CrossAttention(8), (X_BTD, POSITIONS, MEMORY)),
    'decoder block': Example(decoder_block(), (X_BTD, POSITIONS, MEMORY)),
    'encoder-decoder': Example(
        layers.TransformerEncoderDecoder(
            layers.Embedding(1024, D), encoder=stack(block('full')), decoder=stack(decoder_block())
        ),
        (IDS, IDS),
    ),
    'experts': Example(layers.Experts(4, 4 * D, capacity_factor=1.0), (X_BTD,)),
    'feed-forward': Example(layers.FeedForward(4 * D), (X_BTD,)),
    'gated deltanet': Example(layers.GatedDeltaNet(8), (X_BTD,)),
    'gated feed-forward': Example(layers.GatedFeedForward(4 * D), (X_BTD,)),
    'inverted bottleneck': Example(layers.InvertedBottleneck(channels=128), (X_BHWC,)),
    'large stem': Example(layers.LargeStem(), (IMAGES, 64)),
    'latent attention': Example(layers.LatentAttention(8, 128, query_latent_dims=256), (X_BTD,)),
    'linear': Example(layers.Linear(D), (X_BTD,)),
    'linen': Example(OfLinen(channels=64), (X_BHWC,)),
    'local attention': Example(layers.Attention(8, window=32), (X_BTD,)),
    'lstm': Example(layers.LSTM(), (X_BTD,)),
    'mamba-2': Example(layers.Mamba2(), (X_BTD,)),
    'mlp': Example(layers.Mlp([D, D], 10), (X_BTD,)),
    'nnx': Example(OfNnx(64 * 64 * 128, 64), (X_BHWC,)),
    'residual': Example(layers.Residual(layers.FeedForward(4 * D)), (X_BTD,)),
    'resnet': Example(
        layers.ResNet(num_classes=10, stage_sizes=[1, 1], stem=layers.LargeStem()), (IMAGES,)
    ),
    'scanned layers': Example(layers.Stack([block()], repeats=3, scan='always'), (X_BTD,)),
    'sequence pool': Example(layers.SequencePool(num_segments=64), (X_BTD,)),
    'rg-lru': Example(layers.RGLRU(8), (X_BTD,)),
    'shared layers': Example(stack(block(), layers.SharedWithPrevious()), (X_BTD,)),
    'small stem': Example(layers.SmallStem(), (IMAGES, 64)),
    'text classifier': Example(
        layers.TextClassifier(
            layers.Embedding(1024, D), stack(block('full')), head=layers.Linear(10)
        ),
        (IDS,),
    ),
    'transformer': Example(layers.TransformerLm(layers.Embedding(1024, D), stack(block())), (IDS,)),
    'vision transformer': Example(
        layers.VisionTransformer(
            num_classes=10, patch_size=16, dims=D, stack=stack(block('full', position='none'))
        ),
        (IMAGES,),
    ),
}

ELEMENTWISE = [
    'activate',
    'batch norm',
    'dropout',
    'embedding',
    'global pool',
    'group norm',
    'identity',
    'layer norm',
    'leaky relu',
    'learned positions',
    'pool',
    'rms norm',
    'sinusoidal positions',
    'token types',
]
"""Of `EXAMPLES`."""


def counts(example: Example, is_compiled: bool = False) -> tuple[float, float]:
    """Our operations of a forward pass, and XLA's, before it optimizes or afterwards."""
    module = example.layer.module()
    fixed = [arg for arg in example.args if isinstance(arg, int)]
    arrays = [arg for arg in example.args if not isinstance(arg, int)]

    def run(variables: Any, *arrays: Any) -> Any:
        return module.apply(variables, *arrays, *fixed)

    variables = jax.eval_shape(lambda *x: module.init(jax.random.key(0), *x, *fixed), *arrays)
    lowered = jax.jit(unrolled(run)).lower(variables, *arrays)
    analysis: Any = (lowered.compile() if is_compiled else lowered).cost_analysis()
    return flops(run, variables, *arrays), analysis.get('flops', 0.0)


def test_every_layer_is_counted_here() -> None:
    there = {cls for cls in all_components() if issubclass(cls, layers.Layer)} - {layers.Layer}
    counted = [*PRODUCTS.values(), *(EXAMPLES[name] for name in ELEMENTWISE)]
    used = {type(example.layer) for example in counted}
    # Parts of 'chain', of 'shared layers' and of 'experts'.
    used |= {layers.Flatten, layers.SharedWithPrevious, layers.Router}
    # Attention calls their methods.
    used |= {layers.AttentionPosition, layers.Alibi, layers.RelativeBias, layers.Rotary}
    used.add(layers.FutureTokens)  # It calls the model's own output; only training runs it.
    assert not {cls.__name__ for cls in there - {base for cls in used for base in cls.__mro__}}


@pytest.mark.parametrize('name', PRODUCTS)
def test_operations_are_those_of_the_compiler(name: str) -> None:
    ours, xla = counts(PRODUCTS[name])
    assert ours == pytest.approx(xla, rel=EXPLAINED.get(name, TOLERANCE))


@pytest.mark.parametrize('name', ['convolution of sequences', 'basic block', 'feed-forward'])
def test_the_compiled_program_has_as_many_operations(name: str) -> None:
    ours, xla = counts(PRODUCTS[name], is_compiled=True)
    assert ours == pytest.approx(xla, rel=TOLERANCE)


def test_experts_count_for_the_tokens_that_they_have() -> None:
    # XLA for CPUs multiplies all tokens by all experts, and masks.
    experts, router = layers.Experts(8, 4 * D), 2 * D * 8
    ours, _ = counts(Example(experts, (X_BTD,)))
    assert ours == B * T * (2 * 3 * 2 * D * 4 * D + router)


@pytest.mark.parametrize('name', ELEMENTWISE)
def test_layers_without_products_are_free_and_cheap(name: str) -> None:
    example = EXAMPLES[name]
    ours, xla = counts(example)
    assert ours == 0
    result: Any = jax.eval_shape(
        lambda: example.layer.module().init_with_output(jax.random.key(0), *example.args)[0]
    )
    elements = [arg.size for arg in example.args if not isinstance(arg, int)]
    assert xla <= FEW * max(*elements, result.size)


def test_gradients_of_counted_products_count() -> None:
    layer, x = layers.DepthwiseConv1D(4), jax.ShapeDtypeStruct((2, 8, 16), jnp.float32)
    module = layer.module()
    variables = jax.eval_shape(lambda x: module.init(jax.random.key(0), x), x)
    one = 2 * 4 * x.size

    def loss(variables: Any, x: Any) -> Any:
        y: Any = module.apply(variables, x)
        return jnp.sum(y)

    assert flops(loss, variables, x) == one
    assert flops(jax.grad(loss, argnums=(0, 1)), variables, x) == 3 * one
