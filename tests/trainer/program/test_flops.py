from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from trainer.layers import (
    Attention,
    FeedForward,
    GatedFeedForward,
    Stack,
    TransformerBlock,
    counted_products,
    declared_flops,
)
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


def test_each_row_of_a_ragged_product_counts_for_its_group() -> None:
    rows, kernels, sizes = jnp.ones((8, D)), jnp.ones((4, D, F)), jnp.array([3, 0, 4, 1])
    one = 2 * 8 * D * F

    def loss(rows: jax.Array, kernels: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.ragged_dot(rows, kernels, sizes))

    assert flops(loss, rows, kernels) == one
    assert flops(jax.grad(loss, argnums=(0, 1)), rows, kernels) == 3 * one
    each = [jnp.stack([value] * 2) for value in (rows, kernels, sizes)]
    assert flops(jax.vmap(jax.lax.ragged_dot), *each) == 2 * one


def recurrence(decay: jax.Array, x: jax.Array) -> jax.Array:
    """States of [T, D], one after another."""

    def step(state: jax.Array, each: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        with counted_products():
            state = each[0] * state + each[1]
        return state, state

    return jax.lax.scan(step, jnp.zeros(x.shape[1:]), (decay, x))[1]


def test_products_of_recurrences_count_where_a_layer_says_so() -> None:
    decay, x = jnp.full((T, D), 0.5), jnp.ones((T, D))

    def combined(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def at_once(decay: jax.Array, x: jax.Array) -> Any:
        return jax.lax.associative_scan(combined, (decay, x))[1]

    def counted(decay: jax.Array, x: jax.Array) -> Any:
        with counted_products():
            return at_once(decay, x)

    np.testing.assert_allclose(at_once(decay, x), recurrence(decay, x))
    one = 2 * T * D
    assert flops(recurrence, decay, x) == one
    gradient = jax.grad(lambda *args: jnp.sum(recurrence(*args)), argnums=(0, 1))
    assert flops(gradient, decay, x) == 3 * one
    assert flops(at_once, decay, x) == 0
    # Pairs twice: 7 combinations towards the whole and 4 back, of 2 products each.
    assert one < flops(counted, decay, x) == 2 * 2 * (4 + 2 + 1 + 3 + 1) * D
    assert flops(lambda *args: declared_flops(one, counted, *args), decay, x) == one


@pytest.mark.parametrize('again', [False, True])
def test_a_declared_number_replaces_what_is_inside(again: bool) -> None:
    x, w = jnp.ones((B, D)), jnp.ones((D, D))

    def declared(w: jax.Array, x: jax.Array) -> jax.Array:
        return declared_flops(7, lambda w, x: jnp.sin(x @ w) @ w, w, x)

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        step: Any = jax.checkpoint(declared) if again else declared
        return jnp.sum(jax.lax.fori_loop(0, 5, lambda _, x: step(w, x), x)) + jnp.sum(x @ w)

    assert flops(loss, w, x) == 5 * 7 + 2 * B * D * D
    backward = flops(jax.grad(loss), w, x) - 2 * 2 * B * D * D
    assert backward == 5 * 7 * (4 if again else 3)
    np.testing.assert_allclose(declared(w, x), jnp.sin(x @ w) @ w, rtol=1e-6)


def test_a_kernel_of_pallas_counts_for_each_point_of_its_grid() -> None:
    def square(x_ref: Any, y_ref: Any) -> None:
        y_ref[...] = x_ref[...] @ x_ref[...]

    rows = pl.BlockSpec((8, 8), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct((32, 8), jnp.float32)
    kernel: Any = pl.pallas_call(
        square, out_shape=shape, grid=(4,), in_specs=[rows], out_specs=rows, interpret=True
    )
    assert flops(kernel, shape) == 4 * 2 * 8 * 8 * 8
    assert flops(lambda x: declared_flops(9, kernel, x), shape) == 9


def test_a_triangular_solve_is_half_of_a_product() -> None:
    triangles, right = jnp.ones((B, D, D)), jnp.ones((B, D, F))
    solve: Any = jax.scipy.linalg.solve_triangular
    assert flops(lambda a, b: solve(a, b, lower=True), triangles, right) == B * D * D * F
