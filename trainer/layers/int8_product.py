"""Products of 8-bit integers, by scales of the numbers themselves."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from trainer.layers.products import Terms, placed, product_of

_LARGEST = 127
"""Of both signs, so that zero stays zero (Jacob et al. 2018)."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def int8_product(terms: Terms, dtype: Any, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The product of two factors that are rounded to 8-bit integers.

    Each row of x, and each output of the kernel, has a scale of its own: its largest number by
    127. Sums are exact. Gradients pass the rounding as if it were none (Bengio et al. 2013), and
    are products in the dtype of the result, of the rounded factors.

    Args:
        terms: the equation.
        dtype: of the result.

    Example:
        >>> from trainer.layers.products import terms_of
        >>> x, kernel = jnp.array([[1.0, -2.0]]), jnp.array([[0.5], [0.25]])
        >>> y = int8_product(terms_of('bd,df->bf', 2), jnp.float32, x, kernel)
        >>> bool(abs(y[0, 0]) < 0.01)
        True
    """
    return _forward(terms, dtype, x, kernel)[0]


def _forward(terms: Terms, dtype: Any, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Any]:
    rounded_x, scale_x = _rounded(x, terms.summed(terms.left))
    rounded_kernel, scale_kernel = _rounded(kernel, terms.summed(terms.right))
    sums = product_of(terms, rounded_x, rounded_kernel, jnp.int32).astype(jnp.float32)
    scale = placed(scale_x, terms.left, terms.result)
    scale *= placed(scale_kernel, terms.right, terms.result)
    # Arrays without elements carry the dtypes of the gradients.
    like = jnp.zeros(0, x.dtype), jnp.zeros(0, kernel.dtype)
    kept = (rounded_x, scale_x), (rounded_kernel, scale_kernel), like
    return (sums * scale).astype(dtype), kept


def _backward(
    terms: Terms, dtype: Any, kept: Any, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    (x, scale_x), (kernel, scale_kernel), (like_x, like_kernel) = kept
    x, kernel = (x * scale_x).astype(dtype), (kernel * scale_kernel).astype(dtype)
    of_x = product_of(terms.of_left_gradient, gradient, kernel, like_x.dtype)
    of_kernel = product_of(terms.of_right_gradient, x, gradient, like_kernel.dtype)
    return of_x, of_kernel


int8_product.defvjp(_forward, _backward)


def _rounded(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Integers in place of x, and their scales, with size 1 along `axes`."""
    x = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), axis=axes, keepdims=True)
    scale = jnp.where(largest > 0, largest / _LARGEST, 1.0)
    return jnp.round(x / scale).astype(jnp.int8), scale
