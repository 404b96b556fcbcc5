import contextlib

import jax

COUNTED_PRODUCTS = 'counted_products'
"""Scope of elementwise products that `trainer.program.flops` counts."""


def counted_products() -> contextlib.AbstractContextManager[None]:
    """Scope of the elementwise products of a convolution, which count in FLOPs.

    Example:
        >>> import jax.numpy as jnp
        >>> from trainer.program.flops import flops
        >>> def smoothed(x, taps):
        ...     with counted_products():
        ...         return taps[0] * x + taps[1] * jnp.roll(x, 1)
        >>> flops(smoothed, jnp.ones(5), jnp.ones(2)) == 2 * 2 * 5
        True
    """
    return jax.named_scope(COUNTED_PRODUCTS)
