from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.layers import Attention, FeedForward, GatedFeedForward, Stack, TransformerBlock
from trainer.layers.base import Layer
from trainer.program.flops import flops

B, T, D, F, H = 3, 8, 16, 32, 4
X = jax.ShapeDtypeStruct((B, T, D), jnp.float32)


def of_layer(layer: Layer, x: Any = X) -> int:
    """Operations of a forward pass."""
    module = layer.module()
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros(x.shape)))
    return flops(lambda params, x: module.apply(params, x), params, x)


ATTENTION = 4 * 2 * B * T * D * D + 2 * 2 * B * T * T * D
FEED_FORWARD = 2 * 2 * B * T * D * F


def test_feed_forward() -> None:
    assert of_layer(FeedForward(hidden_dims=F)) == FEED_FORWARD
    assert of_layer(GatedFeedForward(hidden_dims=F)) == 3 * 2 * B * T * D * F


def test_attention() -> None:
    assert of_layer(Attention(num_heads=H)) == ATTENTION
    # Half of the keys and values, products as many as before.
    grouped = of_layer(Attention(num_heads=H, num_kv_heads=H // 2))
    assert grouped == ATTENTION - 2 * 2 * B * T * D * D // 2


@pytest.mark.parametrize(
    ('scan', 'remat'), [('always', 'none'), ('always', 'dots'), ('never', 'full')]
)
@pytest.mark.contract
def test_a_stack_has_the_operations_of_its_layers_however_it_is_compiled(
    scan: Any, remat: Any
) -> None:
    block = TransformerBlock(Attention(H), FeedForward(F))
    stack = Stack([block], repeats=5, scan=scan, remat=remat)
    assert of_layer(stack) == 5 * (ATTENTION + FEED_FORWARD)


def test_the_gradient_of_a_product_is_two_products() -> None:
    x, w = jnp.ones((B, D)), jnp.ones((D, F))
    of_loss = 2 * B * D * F

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ w))

    assert flops(loss, x, w) == of_loss
    assert flops(jax.grad(loss, argnums=(0, 1)), x, w) == 3 * of_loss
    again = jax.checkpoint(loss)
    assert flops(again, x, w) == of_loss
    assert flops(jax.grad(again, argnums=(0, 1)), x, w) == 4 * of_loss  # Computed again.


def test_batched_products_and_convolutions() -> None:
    x, w = jnp.ones((5, 3, 4)), jnp.ones((5, 4, 6))
    assert flops(jnp.matmul, x, w) == 2 * 5 * 3 * 4 * 6
    image, kernel = jnp.ones((2, 9, 9, 4)), jnp.ones((3, 3, 4, 8))

    def convolve(image: jax.Array, kernel: jax.Array, groups: int = 1) -> jax.Array:
        return jax.lax.conv_general_dilated(
            image,
            kernel,
            (2, 2),
            'VALID',
            dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
            feature_group_count=groups,
        )

    outputs = 2 * 4 * 4 * 8
    assert flops(convolve, image, kernel) == 2 * outputs * 3 * 3 * 4
    assert flops(lambda x, w: convolve(x, w, 4), image, kernel[:, :, :1]) == 2 * outputs * 3 * 3


def test_calls_and_control_flow() -> None:
    x = jnp.ones((4, 4))
    one = 2 * 4 * 4 * 4

    @jax.custom_vjp
    def custom(x: jax.Array) -> jax.Array:
        return x @ x

    custom.defvjp(lambda x: (custom(x), x), lambda x, t: (t @ x,))

    def either(x: jax.Array) -> jax.Array:
        return jax.lax.cond(x[0, 0] > 0, lambda x: x, lambda x: x @ x @ x, x)

    def until(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.sum(x @ x) < 0, lambda x: x @ x, x)

    def rows(x: jax.Array) -> jax.Array:
        return jax.lax.map(lambda row: x @ row, x)

    assert flops(jax.jit(lambda x: x @ x), x) == one
    assert flops(custom, x) == one
    assert flops(either, x) == 2 * one
    assert flops(until, x) == 2 * one
    assert flops(rows, x) == one
    assert flops(lambda x: jax.nn.silu(jax.nn.relu(x @ x)), x) == one
    assert flops(lambda x: jax.lax.fori_loop(0, 7, lambda _, x: x @ x, x), x) == 7 * one
    assert flops(lambda x: jnp.sin(x) + np.pi, x) == 0


def test_the_compiler_counts_the_same_for_plain_products() -> None:
    block = TransformerBlock(Attention(H, position='none'), FeedForward(F, activation='identity'))
    module = block.module()
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros(X.shape)))
    compiled = jax.jit(module.apply).lower(params, X).compile()
    analysis: Any = compiled.cost_analysis()
    elementwise = 1.5
    assert of_layer(block) < analysis['flops'] < elementwise * of_layer(block)
