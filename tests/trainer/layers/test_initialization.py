import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import initializers

from trainer.layers import (
    LSTM,
    RGLRU,
    Attention,
    BottleneckBlock,
    Chain,
    Conv2D,
    DeltaOrthogonal,
    Embedding,
    FeedForward,
    Filled,
    Flatten,
    GatedDeltaNet,
    Gaussian,
    Initializer,
    Layer,
    LearnedPositions,
    Linear,
    Mamba2,
    Mlp,
    Residual,
    ResNet,
    SmallStem,
    Stack,
    TransformerLm,
    TruncatedGaussian,
    Uniform,
    VisionTransformer,
    Xavier,
)
from trainer.layers.initialization import KernelInit, kernel_init
from trainer.layers.parameters import ParameterBox
from trainer.symbolic.errors import UserError

X = jnp.ones((1, 3, 64))


class Each(Layer):
    """Products of 8 layers, which are no inputs by the name of their axis."""

    def forward(self, x: jax.Array) -> jax.Array:
        shape = (8, x.shape[-1], 32)
        kernel = self.param('kernel', shape, ('layers', 'embed', 'mlp'))
        return jnp.einsum('btd,edf->btd', x, kernel)


class NoInit(Layer):
    """A vector without an initializer."""

    def forward(self, x: jax.Array) -> jax.Array:
        return x * self.param('gain', x.shape[-1:], ('norm',))


class EachNoInit(Layer):
    """Vectors of 8 layers without an initializer."""

    def forward(self, x: jax.Array) -> jax.Array:
        return x * self.param('gain', (8, x.shape[-1]), ('layers', 'norm'), kernel_init(None))[0]


def boxes(layer: Layer, x: jax.Array = X) -> dict[str, ParameterBox]:
    variables: Any = layer.module().init(jax.random.key(0), x)
    leaves = jax.tree_util.tree_leaves_with_path(
        variables['params'], is_leaf=lambda value: isinstance(value, ParameterBox)
    )
    return {'.'.join(part.key for part in path): box for path, box in leaves}


def test_layers_and_experts_are_no_inputs() -> None:
    box = boxes(Each())['kernel']
    assert (box.in_axes, box.out_axes, box.num_inputs, box.std) == ((-2,), (-1,), 64, 0.125)
    assert np.std(box.value) == pytest.approx(0.125, rel=0.02)


def test_batch_axes_can_be_given_or_named() -> None:
    given = kernel_init(None, in_axis=1, out_axis=2, batch_axis=0)
    named = kernel_init(None).of_axes(('embed', 'experts', 'mlp'))
    assert given.fan((8, 64, 32), 'inputs') == 64
    assert named.fan((64, 8, 32), 'inputs') == 64
    kernel = named(jax.random.key(0), (64, 8, 32), jnp.float32)
    assert np.std(kernel) == pytest.approx(0.125, rel=0.02)


def test_axes_of_inputs_and_outputs_stay_where_a_stack_adds_layers() -> None:
    block = Stack([Residual(Attention(4)), Residual(FeedForward(32))])
    found = boxes(Stack([block], repeats=3, scan='always'))
    axes = {path.split('.')[-1]: (box.in_axes, box.out_axes) for path, box in found.items()}
    assert axes['query'] == ((-3,), (-2, -1))
    assert axes['output'] == ((-3, -2), (-1,))
    assert axes['up'] == ((-2,), (-1,))
    for box in found.values():
        if box.in_axes is not None and box.out_axes is not None:
            inputs = math.prod(box.value.shape[axis] for axis in box.in_axes)
            outputs = math.prod(box.value.shape[axis] for axis in box.out_axes)
            assert 3 * inputs * outputs == box.value.size and inputs == box.num_inputs


def test_tables_have_no_inputs_and_other_initializers_do_not_know_them() -> None:
    table = boxes(Embedding(10, 4), jnp.ones((1, 3), jnp.int32))['table']
    assert (table.in_axes, table.out_axes, table.num_inputs) == ((), (-2, -1), 1)
    scale = next(box for path, box in boxes(Residual(FeedForward(32))).items() if 'scale' in path)
    assert (scale.in_axes, scale.num_inputs, scale.std) == (None, None, None)


def test_windows_of_a_kernel_are_inputs() -> None:
    init = KernelInit()
    assert init.fan((3, 3, 16, 32), 'inputs') == 144
    kernel = init(jax.random.key(0), (3, 3, 16, 32), jnp.float32)
    lecun = initializers.lecun_normal()(jax.random.key(0), (3, 3, 16, 32), jnp.float32)
    np.testing.assert_array_equal(kernel, lecun)
    he = initializers.he_normal()(jax.random.key(0), (3, 3, 16, 32), jnp.float32)
    doubled = KernelInit(gain=2.0)(jax.random.key(0), (3, 3, 16, 32), jnp.float32)
    np.testing.assert_array_equal(doubled, he)
    normal = initializers.normal(0.3)(jax.random.key(0), (16, 32), jnp.float32)
    own = KernelInit(Gaussian(0.3))(jax.random.key(0), (16, 32), jnp.float32)
    np.testing.assert_array_equal(own, normal)


@pytest.mark.parametrize('scan', ['always', 'never'])
@pytest.mark.parametrize('layer', [NoInit(), EachNoInit()])
def test_a_vector_without_initializer_is_named(layer: Layer, scan: Any) -> None:
    stack = Stack([layer.clone()], repeats=2, scan=scan)
    with pytest.raises(UserError) as raised:
        boxes(stack)
    name = type(layer).__name__
    assert f"layers[0] ({name}): parameter 'gain' of shape " in str(raised.value)
    assert 'pass `init`' in str(raised.value)


KERNEL = (3, 3, 16, 32)
INPUTS, OUTPUTS = 9 * 16, 9 * 32
AVERAGE = (INPUTS + OUTPUTS) / 2

PAX: dict[str, tuple[Initializer, str, float]] = {
    'Gaussian': (Gaussian(0.5), 'normal', 0.5),
    'GaussianSqrtDim': (Gaussian(2.0, 'first'), 'normal', 2 / math.sqrt(3)),
    'GaussianSqrtFanIn': (Gaussian(2.0, 'inputs'), 'normal', 2 / math.sqrt(INPUTS)),
    'GaussianSqrtFanOut': (Gaussian(2.0, 'outputs'), 'normal', 2 / math.sqrt(OUTPUTS)),
    'GaussianSqrtFanAvg': (Gaussian(2.0, 'average'), 'normal', 2 / math.sqrt(AVERAGE)),
    'Uniform': (Uniform(0.5), 'uniform', 0.5),
    'UniformSqrtDim': (Uniform(2.0, 'first'), 'uniform', 2 / math.sqrt(3)),
    'UniformUnitScaling': (Uniform(math.sqrt(3), 'inputs'), 'uniform', math.sqrt(3 / INPUTS)),
    'UniformUnitScalingFanAvg': (
        Uniform(math.sqrt(3), 'average'),
        'uniform',
        math.sqrt(3 / AVERAGE),
    ),
    'Xavier': (Xavier(), 'uniform', math.sqrt(6 / (INPUTS + OUTPUTS))),
    'XavierWithFixupParams': (
        Xavier(depth=16, layers_per_block=2),
        'uniform',
        math.sqrt(6 / (INPUTS + OUTPUTS)) / 2,
    ),
    'TruncatedGaussian': (TruncatedGaussian(0.5), 'truncated', 0.5),
    'TruncatedGaussianSqrtDim': (
        TruncatedGaussian(2.0, 'first'),
        'truncated',
        2 / math.sqrt(3),
    ),
    'TruncatedGaussianSqrtFanIn': (
        TruncatedGaussian(2.0, 'inputs'),
        'truncated',
        2 / math.sqrt(INPUTS),
    ),
    'TruncatedGaussianSqrtFanOut': (
        TruncatedGaussian(2.0, 'outputs'),
        'truncated',
        2 / math.sqrt(OUTPUTS),
    ),
    'Constant': (Filled(0.25), 'constant', 0.25),
    'ScaledDeltaOrthogonal': (DeltaOrthogonal(2.0), 'orthogonal', 2.0),
}
"""Initializers of Pax: its formula here, and the distribution with its scale."""


@pytest.mark.pax('`WeightInit`')
@pytest.mark.parametrize('name', PAX)
def test_initializers_are_those_of_pax(name: str) -> None:
    init, kind, scale = PAX[name]
    drawn = np.asarray(KernelInit(init)(jax.random.key(0), KERNEL, jnp.float32))
    std = KernelInit(init).std(KERNEL)
    if kind == 'normal':
        assert drawn.std() == pytest.approx(scale, rel=0.02)
        assert std == pytest.approx(scale) and abs(drawn).max() > 3 * scale
    elif kind == 'uniform':
        assert scale > abs(drawn).max() > 0.99 * scale
        assert std == pytest.approx(drawn.std(), rel=0.02)
    elif kind == 'truncated':
        assert 2 * scale >= abs(drawn).max() > 1.9 * scale
        assert std == pytest.approx(drawn.std(), rel=0.02)
    elif kind == 'constant':
        assert (drawn == scale).all() and std is None
    else:
        middle = drawn[1, 1]
        np.testing.assert_allclose(middle @ middle.T, scale**2 * np.eye(16), atol=1e-5)
        assert np.count_nonzero(drawn) == np.count_nonzero(middle) and std is None


IMAGES = jnp.ones((1, 4, 4, 3))
WITH_INIT = {
    'attention': (Attention(2, init=Filled(0.5)), X),
    'convolution': (Conv2D(4, init=Filled(0.5)), IMAGES),
    'feed-forward': (FeedForward(8, init=Filled(0.5)), X),
    'head': (Chain([Flatten(), Linear(3, init=Filled(0.5))]), IMAGES),
    'lstm': (LSTM(init=Filled(0.5)), X),
    'mamba': (Mamba2(4, 4, init=Filled(0.5)), X),
    'memory': (GatedDeltaNet(2, init=Filled(0.5)), X),
    'mlp': (Mlp([4], 3, init=Filled(0.5)), X),
    'patches': (
        VisionTransformer(3, Filled(0.5), patch_size=2, dims=8, stack=Stack([])),
        IMAGES,
    ),
    'recurrence': (RGLRU(2, init=Filled(0.5)), X),
    'residual network': (
        ResNet(
            3,
            Filled(0.5),
            stage_sizes=[1],
            width=4,
            stem=SmallStem(init=Filled(0.5)),
            block=BottleneckBlock(init=Filled(0.5)),
        ),
        IMAGES,
    ),
    'tables': (
        TransformerLm(
            Embedding(5, 8, init=Filled(0.5)),
            Stack([]),
            position_embedding=LearnedPositions(8, init=Filled(0.5)),
        ),
        jnp.ones((1, 3), jnp.int32),
    ),
}


@pytest.mark.pax('params_init')
@pytest.mark.parametrize('name', WITH_INIT)
def test_layers_draw_their_kernels_from_the_given_distribution(name: str) -> None:
    layer, x = WITH_INIT[name]
    # Biases, positions and taps have initializers of their own, and no decay.
    kernels = [box for box in boxes(layer, x).values() if box.value.ndim > 1 and box.decay]
    values = [box.value for box in kernels]
    assert values and all((value == 0.5).all() for value in values)


def test_kernels_of_convolutions_know_their_axes_and_those_of_groups_do_not() -> None:
    def kernel(groups: int) -> ParameterBox:
        return boxes(Conv2D(6, groups=groups), IMAGES)['kernel']

    assert (kernel(1).in_axes, kernel(1).num_inputs) == ((-4, -3, -2), 27)
    assert kernel(3).in_axes is None
    assert kernel(1).std == pytest.approx(math.sqrt(2 / 27))


def test_kernels_of_linear_layers_are_refused_where_they_do_not_fit() -> None:
    with pytest.raises(UserError, match=r'DeltaOrthogonal is for convolutions.* \(64, 4\)'):
        boxes(Linear(4, init=DeltaOrthogonal()))
    with pytest.raises(ValueError, match='scale must be above 0: 0'):
        Gaussian(0.0)
