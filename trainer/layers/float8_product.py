"""Products of 8-bit floating-point numbers, by scales of earlier passes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from trainer.layers.products import Terms, product_of

HISTORY = '_float8_amax'
"""Suffix of the states: the largest numbers of x, the kernel and the gradient, newest first."""

_FORWARD, _BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def float8_product(
    terms: Terms, dtype: Any, x: jax.Array, kernel: jax.Array, history: jax.Array
) -> jax.Array:
    """The product of two factors in e4m3; its gradients are products with e5m2.

    Micikevicius et al. 2022. Numbers are scaled to the range of their format by the largest number
    of earlier passes, so no pass over them precedes the product. Larger ones saturate.

    Args:
        terms: the equation.
        dtype: of the result.
        history: [3, passes], the largest numbers of x, of the kernel and of the result's gradient.
            In place of a gradient, its first column has those of this pass: see `updated`.

    Example:
        >>> from trainer.layers.products import terms_of
        >>> x, kernel = jnp.array([[1.0, -2.0]]), jnp.array([[0.5], [0.25]])
        >>> of = functools.partial(float8_product, terms_of('bd,df->bf', 2), jnp.float32, x, kernel)
        >>> of(jnp.zeros((3, 4))).tolist()
        [[0.0]]
        >>> jax.grad(lambda history: of(history).sum())(jnp.zeros((3, 4)))[:, 0].tolist()
        [2.0, 0.5, 1.0]
    """
    return _forward(terms, dtype, x, kernel, history)[0]


def _forward(
    terms: Terms, dtype: Any, x: jax.Array, kernel: jax.Array, history: jax.Array
) -> tuple[jax.Array, Any]:
    scale_x, scale_kernel, _ = scales(history)
    rounded_x = _rounded(x, scale_x, _FORWARD)
    rounded_kernel = _rounded(kernel, scale_kernel, _FORWARD)
    y = product_of(terms, rounded_x, rounded_kernel, dtype)
    largest = _largest(x), _largest(kernel)
    # Arrays without elements carry the dtypes of the gradients.
    like = jnp.zeros(0, x.dtype), jnp.zeros(0, kernel.dtype)
    return _divided(y, scale_x * scale_kernel), (rounded_x, rounded_kernel, history, largest, like)


def _backward(
    terms: Terms, dtype: Any, kept: Any, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    del dtype
    x, kernel, history, largest, (like_x, like_kernel) = kept
    scale_x, scale_kernel, scale = scales(history)
    rounded = _rounded(gradient, scale, _BACKWARD)
    # Tensor cores of Hopper add in fewer bits unless they are asked for all.
    exact = jax.lax.Precision.HIGHEST
    of_x = product_of(terms.of_left_gradient, rounded, kernel, like_x.dtype, exact)
    of_kernel = product_of(terms.of_right_gradient, x, rounded, like_kernel.dtype, exact)
    newest = jnp.stack([*largest, _largest(gradient)])
    return (
        _divided(of_x, scale * scale_kernel),
        _divided(of_kernel, scale * scale_x),
        jnp.zeros_like(history).at[:, 0].set(newest),
    )


float8_product.defvjp(_forward, _backward)


def scales(history: jax.Array) -> jax.Array:
    """Factors that bring the largest numbers of a history to the ends of their formats; 1 at first.

    Example:
        >>> scales(jnp.array([[224.0, 448.0], [0.0, 0.0], [57344.0, 3.0]])).tolist()
        [1.0, 1.0, 1.0]
    """
    ends = jnp.array([_end(_FORWARD), _end(_FORWARD), _end(_BACKWARD)])
    largest = jnp.max(history, axis=1)
    return jnp.where(largest > 0, ends / largest, 1.0)


def histories(states: Any) -> Any:
    """The part of a tree of states that has histories."""
    flat = flatten_dict(states)
    return unflatten_dict({path: x for path, x in flat.items() if path[-1].endswith(HISTORY)})


def updated(history: jax.Array, gradient: jax.Array) -> jax.Array:
    """The history after a pass, by its "gradient" in that pass.

    A product that ran several times, as in a layer that is shared, counts the sum: the scale leaves
    that much room. Numbers that are not finite, and products that did not run, change nothing.

    Example:
        >>> updated(
        ...     jnp.array([[1.0, 2.0]] * 3), jnp.array([[3.0, 0], [jnp.nan, 0], [0, 0]])
        ... ).tolist()
        [[3.0, 1.0], [1.0, 2.0], [1.0, 2.0]]
    """
    newest = gradient[..., :1]
    moved = jnp.concatenate([newest, history[..., :-1]], axis=-1)
    return jnp.where((newest > 0) & jnp.isfinite(newest), moved, history)


def _rounded(x: jax.Array, scale: jax.Array, dtype: Any) -> jax.Array:
    end = _end(dtype)
    return jnp.clip(x.astype(jnp.float32) * scale, -end, end).astype(dtype)


def _divided(x: jax.Array, scale: jax.Array) -> jax.Array:
    return (x.astype(jnp.float32) / scale).astype(x.dtype)


def _largest(x: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(x)).astype(jnp.float32)


def _end(dtype: Any) -> float:
    return float(jnp.finfo(dtype).max)
