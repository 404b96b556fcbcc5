"""Transformer blocks of layers of any kind."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import applied, new_params
from trainer.layers import (
    Attention,
    CrossAttention,
    DecoderBlock,
    FeedForward,
    Identity,
    Layer,
    Linear,
    Positions,
    Residual,
    Stack,
    TransformerBlock,
)
from trainer.symbolic.errors import UserError

X_BTD = jax.random.normal(jax.random.key(7), (2, 6, 8))


class Mixing(Layer):
    """Adds the mean of the past, without a cache.

    Attributes:
        output_dims: of the result.
    """

    output_dims: int

    def forward(self, x_BTD: Any, positions: Positions | None = None) -> Any:
        kernel = self.param('kernel', (x_BTD.shape[-1], self.output_dims), ('embed', 'mlp'))
        mean_BTD = jnp.cumsum(x_BTD, 1) / jnp.arange(1, 1 + x_BTD.shape[1])[:, None]
        return self.product('btd,df->btf', mean_BTD, kernel)


def test_a_block_takes_any_mixer_and_any_channel_layer() -> None:
    block = TransformerBlock(attention=Mixing(8), feed_forward=Linear(8))
    stack = Stack([block], repeats=2, scan='always')
    params = new_params(stack, X_BTD)
    assert params['layers_0x2']['attention']['kernel'].shape == (2, 8, 8)
    y_BTD = applied(stack, params, X_BTD)
    changed = applied(stack, params, X_BTD.at[:, 4:].set(0.0))
    np.testing.assert_allclose(y_BTD[:, :4], changed[:, :4], rtol=1e-5)


@pytest.mark.parametrize(
    ('block', 'place'),
    [
        (TransformerBlock(Mixing(1), FeedForward(8)), 'attention'),
        (TransformerBlock(Attention(2), Linear(1)), 'feed_forward'),
        (TransformerBlock(Mixing(1), FeedForward(8), parallel=True), 'attention'),
        (Residual(Mixing(1)), 'layer'),
    ],
)
def test_a_layer_that_changes_the_shape_is_refused_by_its_path(block: Layer, place: str) -> None:
    stack = Stack([TransformerBlock(Attention(2), FeedForward(8)), block])
    message = rf'layers\[1\]\.{place} \(\w+\): it makes \[2, 6, 1\] of \[2, 6, 8\]'
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: stack.module().init({'params': jax.random.key(0)}, X_BTD))


class Wide(Layer):
    """Computes in float32, and forgets to go back."""

    def forward(self, x_BTD: Any, positions: Positions | None = None) -> Any:
        return jnp.cumsum(x_BTD.astype(jnp.float32), axis=1)


@pytest.mark.parametrize(
    ('scan', 'layer', 'path'),
    [('never', Residual(Wide()), r'\.layer'), ('always', Wide(), '')],
)
def test_a_layer_that_widens_the_dtype_is_refused_by_its_path(
    scan: Any, layer: Layer, path: str
) -> None:
    stack = Stack([layer], repeats=2, scan=scan)
    message = rf'layers\[0\]{path} \(Wide\): it makes float32 of bfloat16'
    key, narrow_BTD = jax.random.key(0), X_BTD.astype(jnp.bfloat16)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(lambda: stack.module().init(key, narrow_BTD))


@pytest.mark.parametrize('kind', ['attention', 'layer'])
def test_decoding_needs_a_cache_where_positions_are_mixed(kind: str) -> None:
    wrapped = (
        TransformerBlock(Mixing(8), FeedForward(8)) if kind != 'layer' else Residual(Mixing(8))
    )
    stack = Stack([TransformerBlock(Linear(8), FeedForward(8)), Residual(Identity()), wrapped])
    with pytest.raises(UserError, match=rf'layers\[2\]\.{kind} \(Mixing\): it cannot decode'):
        applied(stack, new_params(stack, X_BTD), X_BTD, cache_length=6)


def test_a_parallel_block_adds_both_results_for_one_normalized_input() -> None:
    attention, feed_forward = Attention(2), FeedForward(8)
    block = TransformerBlock(attention, feed_forward, parallel=True)
    params = new_params(block, X_BTD)
    assert params.keys() == {'attention', 'attention_norm', 'feed_forward'}
    params['attention_norm']['scale'] += 0.5
    normed = X_BTD * 1.5 / np.sqrt(np.mean(X_BTD**2, -1, keepdims=True) + 1e-6)
    mixed = applied(Attention(2), params['attention'], normed)
    fed = applied(FeedForward(8), params['feed_forward'], normed)
    np.testing.assert_allclose(
        applied(block, params, X_BTD), X_BTD + mixed + fed, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize('policy', ['post', 'post_skip', 'primer_hybrid'])
def test_a_parallel_block_needs_its_norm_before_the_layers(policy: Any) -> None:
    with pytest.raises(ValueError, match=f"norm_policy='pre', not '{policy}'"):
        TransformerBlock(Attention(2), FeedForward(8), norm_policy=policy, parallel=True)


def test_a_decoder_block_is_never_parallel() -> None:
    fields = {'attention': Attention(2), 'feed_forward': FeedForward(8)}
    with pytest.raises(ValueError, match='parallel: attention to the memory stands between'):
        DecoderBlock(cross_attention=CrossAttention(2), parallel=True, **fields)


class Scaled(Layer):
    """Multiplies by a number, which is no position."""

    is_pointwise = True

    def forward(self, x_BTD: Any, factor: float = 2.0) -> Any:
        return x_BTD * factor


class Unnamed(Layer):
    """Needs an argument that no layer passes."""

    def forward(self, x_BTD: Any, factor: float) -> Any:
        return x_BTD * factor


class ByKeyword(Layer):
    """Takes positions where no layer passes them."""

    def forward(self, x_BTD: Any, *, positions: Positions | None = None) -> Any:
        return x_BTD


def test_positions_that_no_layer_could_pass_are_refused() -> None:
    with pytest.raises(UserError, match=r'^layer \(ByKeyword\): `positions` must be the second'):
        new_params(Residual(ByKeyword()), X_BTD)


@pytest.mark.parametrize('scan', ['always', 'never'])
def test_positions_go_to_a_parameter_of_that_name_alone(scan: Any) -> None:
    positions = Positions.unpacked((2, 6))
    stack = Stack([Scaled()], repeats=2, scan=scan)
    np.testing.assert_array_equal(applied(stack, {}, X_BTD, positions), 4 * X_BTD)
    block = Residual(Scaled())
    params = new_params(block, X_BTD)
    np.testing.assert_array_equal(
        applied(block, params, X_BTD, positions), applied(block, params, X_BTD)
    )
    with pytest.raises(UserError, match=r'^layer \(Unnamed\): it is called with activations, and'):
        new_params(Residual(Unnamed()), X_BTD)
