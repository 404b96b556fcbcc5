"""Convolutions, pooling, and image models."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance.layer_examples import IMAGES, resnet, vision_transformer
from tests.factories.parts import apply, init
from trainer.layers import (
    Attention,
    BottleneckBlock,
    Conv2D,
    FeedForward,
    GlobalPool,
    GroupNorm,
    LayerNorm,
    Mlp,
    Pool2D,
    ResNet,
    Stack,
    TransformerBlock,
    VisionTransformer,
)
from trainer.program.flops import flops
from trainer.symbolic.errors import UserError

X_BHWC = jax.random.normal(jax.random.key(3), (2, 5, 6, 4))
LARGE = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)


def abstract(layer: Any, x: Any = LARGE) -> Any:
    """The variables' shapes."""
    return nn.meta.unbox(jax.eval_shape(layer.module().init, {'params': jax.random.key(0)}, x))


def num_params(layer: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(abstract(layer)['params']))


def convolved_by_hand(x: Any, kernel: Any, strides: tuple[int, int], groups: int = 1) -> Any:
    """A convolution without padding, pixel by pixel."""
    (h, w, size, channels), (down, right) = kernel.shape, strides
    rows, columns = (x.shape[1] - h) // down + 1, (x.shape[2] - w) // right + 1
    out = np.zeros((len(x), rows, columns, channels))
    for y, z, c in np.ndindex(rows, columns, channels):
        first = c // (channels // groups) * size
        patch = x[:, y * down : y * down + h, z * right : z * right + w, first : first + size]
        out[:, y, z, c] = np.sum(patch * kernel[..., c], axis=(1, 2, 3))
    return out


@pytest.mark.pax('Vision: convolutions, poolings')
@pytest.mark.parametrize(('groups', 'channels'), [(1, 3), (2, 6), (None, 8)])
def test_convolutions_equal_a_loop_over_pixels(groups: int | None, channels: int) -> None:
    layer = Conv2D(channels, [3, 2], [2, 1], 'VALID', groups=groups)
    variables = init(layer, X_BHWC)
    kernel = np.asarray(variables['params']['kernel'])
    assert kernel.shape == (3, 2, 4 // (groups or 4), channels)
    wanted = convolved_by_hand(np.asarray(X_BHWC), kernel, (2, 1), groups or 4)
    got = apply(layer, variables, X_BHWC)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_same_padding_keeps_the_size() -> None:
    layer = Conv2D(4, strides=[2, 1], bias='zeros')
    assert jax.eval_shape(layer.module().apply, abstract(layer, X_BHWC), X_BHWC).shape == (
        2, 3, 6, 4,
    )  # fmt: skip


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: Conv2D(0), 'channels must be at least 1'),
        (lambda: Conv2D(4, kernel_size=[3]), 'kernel_size must be two positive integers'),
        (lambda: Pool2D(strides=[0, 1]), 'strides must be two positive integers'),
        (lambda: ResNet(num_classes=10, stage_sizes=[]), 'stage_sizes must be positive'),
        (lambda: Mlp([0], 4), 'hidden_dims must be positive'),
    ],
)
def test_impossible_layers_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_groups_that_do_not_divide_the_channels_are_refused() -> None:
    with pytest.raises(UserError, match='3 groups do not divide 4 channels into 6'):
        init(Conv2D(6, groups=3), X_BHWC)


def test_pooling_counts_what_lies_in_the_image() -> None:
    x = jnp.arange(9.0).reshape(1, 3, 3, 1)

    def pooled(layer: Any) -> Any:
        return apply(layer, {}, x)[0, ..., 0].tolist()

    assert pooled(Pool2D()) == [[4]]
    assert pooled(Pool2D(padding='SAME')) == [[4, 5], [7, 8]]
    assert pooled(Pool2D('average', padding='SAME')) == [[2, 3.5], [6.5, 8]]
    assert apply(GlobalPool(), {}, x).tolist() == [[4]]
    assert apply(GlobalPool('max'), {}, x).tolist() == [[8]]


def test_residual_networks_have_as_many_parameters_as_published() -> None:
    # Torchvision's: 11,689,512 and 25,557,032.
    assert num_params(ResNet(num_classes=1000)) == 11_689_512
    resnet_50 = ResNet(num_classes=1000, block=BottleneckBlock(), stage_sizes=[3, 4, 6, 3])
    assert num_params(resnet_50) == 25_557_032
    # He et al. have 3.8e9 multiply-adds, with the stride in the first convolution; here 4.09e9.
    assert flops(resnet_50.module().apply, abstract(resnet_50), LARGE) == pytest.approx(
        2 * 4.09e9, rel=0.005
    )


@pytest.mark.slow
def test_each_block_has_parameters_of_its_own_and_any_normalization() -> None:
    params = init(resnet(block=BottleneckBlock(norm=GroupNorm(num_groups=4))), IMAGES)['params']
    assert set(params) == {
        'stem', 'stage_0_block_0', 'stage_1_block_0', 'head_kernel', 'head_bias',
    }  # fmt: skip
    block = params['stage_1_block_0']
    assert block['second_kernel'].shape == (3, 3, 16, 16)
    assert block['shortcut_kernel'].shape == (1, 1, 32, 64)
    assert block['third_norm']['scale'].shape == (64,)


@pytest.mark.pax('Vision: ViT')
def test_a_vision_transformer_has_the_parameters_of_its_closed_form() -> None:
    dims, layers = 192, 3
    block = TransformerBlock(
        Attention(3, mask='full', position='none'), FeedForward(),
        attention_norm=LayerNorm(), feed_forward_norm=LayerNorm(),
    )  # fmt: skip
    fields = {'num_classes': 1000, 'patch_size': 16, 'dims': dims}
    stack = Stack([block], repeats=layers)
    for pool, tokens in (('mean', 196), ('class_token', 197)):
        model = VisionTransformer(stack=stack.clone(deep=True), pool=pool, **fields)
        of_blocks = layers * (4 * dims**2 + 8 * dims**2 + 4 * dims)
        around = 16 * 16 * 3 * dims + tokens * dims + 2 * dims + dims * 1000 + 1000
        assert num_params(model) == of_blocks + around + (dims if pool == 'class_token' else 0)


def test_patches_that_do_not_divide_the_image_and_causal_attention_are_refused() -> None:
    with pytest.raises(UserError, match=r'patch_size \(4\) must divide the height and width'):
        init(vision_transformer(), IMAGES[:, :6])
    with pytest.raises(ValueError, match="stack: its attention must have mask='full'"):
        VisionTransformer(
            num_classes=2,
            patch_size=2,
            dims=4,
            stack=Stack([TransformerBlock(Attention(2), FeedForward())]),
        )


def test_patches_have_learned_positions() -> None:
    model = vision_transformer()
    variables = init(model, IMAGES)
    swapped = jnp.concatenate([IMAGES[:, 4:], IMAGES[:, :4]], axis=1)
    one, other = (apply(model, variables, x) for x in (IMAGES, swapped))
    assert not np.allclose(one, other, atol=1e-4)
