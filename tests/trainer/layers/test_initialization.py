import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import initializers

from trainer.layers import Attention, Embedding, FeedForward, Layer, Residual, Stack
from trainer.layers.initialization import NormalInit, kernel_init
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
    assert given.num_inputs((8, 64, 32)) == 64
    assert named.num_inputs((64, 8, 32)) == 64
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
    init = NormalInit()
    assert init.num_inputs((3, 3, 16, 32)) == 144
    kernel = init(jax.random.key(0), (3, 3, 16, 32), jnp.float32)
    lecun = initializers.lecun_normal()(jax.random.key(0), (3, 3, 16, 32), jnp.float32)
    np.testing.assert_array_equal(kernel, lecun)


@pytest.mark.parametrize('scan', ['always', 'never'])
@pytest.mark.parametrize('layer', [NoInit(), EachNoInit()])
def test_a_vector_without_initializer_is_named(layer: Layer, scan: Any) -> None:
    stack = Stack([layer.clone()], repeats=2, scan=scan)
    with pytest.raises(UserError) as raised:
        boxes(stack)
    name = type(layer).__name__
    assert f"layers[0] ({name}): parameter 'gain' of shape " in str(raised.value)
    assert 'pass `init`' in str(raised.value)
