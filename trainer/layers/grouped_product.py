"""Products of groups of rows, each with a kernel of its own."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from trainer.layers.context import current_context
from trainer.layers.tokamax_kernels import ragged_product

Kernels = dict[str, jax.Array]
Run = Callable[[jax.Array, Kernels, jax.Array], jax.Array]
"""(rows in the order of groups [N, D], kernels, rows of each group [E]) -> results [N, D]."""

_OUTER = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
"""Sums over the rows of each group, from two arrays of rows to a kernel of each group."""


def grouped_product(x_ND: jax.Array, kernels_EDF: jax.Array, sizes_E: jax.Array) -> jax.Array:
    """Multiplies the first `sizes_E[0]` rows by the first kernel, the next ones by the second, …

    JAX 0.10 has no `vmap` of the gradient of `ragged_dot`. Here a batch is more groups of one
    product, so runs that train as one program have experts, too.

    Args:
        sizes_E: number of rows of each group. Results of rows after all groups are undefined, and
            the gradients of these results must be zero.

    Example:
        >>> x, kernels = jnp.ones((3, 1)), jnp.array([[[1.0]], [[2.0]]])
        >>> grouped_product(x, kernels, jnp.array([1, 2])).ravel().tolist()
        [1.0, 2.0, 2.0]
    """
    if current_context().kernels == 'tokamax':
        return ragged_product(x_ND, kernels_EDF, sizes_E)
    y_NF: jax.Array = _by_xla(x_ND, kernels_EDF, sizes_E)
    return y_NF


@jax.custom_vjp
def _by_xla(x_ND: jax.Array, kernels_EDF: jax.Array, sizes_E: jax.Array) -> jax.Array:
    return _product(x_ND, kernels_EDF, sizes_E)


def _forward(x_ND: jax.Array, kernels_EDF: jax.Array, sizes_E: jax.Array) -> tuple[jax.Array, Any]:
    return _product(x_ND, kernels_EDF, sizes_E), (x_ND, kernels_EDF, sizes_E)


def _backward(saved: Any, slope_NF: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x_ND, kernels_EDF, sizes_E = saved
    of_x = _product(slope_NF, jnp.swapaxes(kernels_EDF, 1, 2), sizes_E)
    of_kernels = _outer_product(x_ND, slope_NF, sizes_E)
    return of_x, of_kernels, None


_by_xla.defvjp(_forward, _backward)


def in_order(run: Run, x_ND: jax.Array, groups_NK: jax.Array, kernels: Kernels) -> jax.Array:
    """The results of the groups of each row [N, K, D], by rows in the order of groups."""
    groups_M = groups_NK.reshape(-1)
    order_M = jnp.argsort(groups_M, stable=True)
    sizes_E = jnp.bincount(groups_M, length=len(kernels['up']))
    y_MD = run(x_ND[order_M // groups_NK.shape[1]], kernels, sizes_E)
    return y_MD[jnp.argsort(order_M)].reshape(*groups_NK.shape, -1)


@jax.custom_batching.custom_vmap
def _product(x_ND: jax.Array, kernels_EDF: jax.Array, sizes_E: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(x_ND, kernels_EDF, sizes_E)


@jax.custom_batching.custom_vmap
def _outer_product(x_ND: jax.Array, y_NF: jax.Array, sizes_E: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot_general(x_ND, y_NF, sizes_E, _OUTER)


@_product.def_vmap
def _product_of_batch(size: int, batched: Any, *args: jax.Array) -> tuple[jax.Array, bool]:
    out = _product(*_joined(size, batched, args))
    return out.reshape(size, -1, *out.shape[1:]), True


@_outer_product.def_vmap
def _outer_product_of_batch(size: int, batched: Any, *args: jax.Array) -> tuple[jax.Array, bool]:
    out = _outer_product(*_joined(size, batched, args))
    return out.reshape(size, -1, *out.shape[1:]), True


def _joined(size: int, batched: Any, args: Any) -> list[jax.Array]:
    """The groups of all elements of a batch, one element after another."""
    each = [
        x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
        for x, is_batched in zip(args, batched, strict=True)
    ]
    # Rows after all groups stay with their element: in its last group.
    rows, sizes_BE = each[0].shape[1], each[-1]
    each[-1] = sizes_BE.at[:, -1].add(rows - jnp.sum(sizes_BE, axis=1))
    return [x.reshape(-1, *x.shape[2:]) for x in each]
