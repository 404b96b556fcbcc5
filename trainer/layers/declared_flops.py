import contextlib
from collections.abc import Callable
from typing import Any

import jax

COUNTED_PRODUCTS = 'counted_products'
"""Scope of elementwise products that `trainer.program.flops` counts."""

DECLARED_FLOPS = 'declared_flops_'
"""Before the number, in the name of a computation with a declared number of operations."""


def counted_products() -> contextlib.AbstractContextManager[None]:
    """Scope of elementwise products that count in FLOPs, as those of convolutions and recurrences.

    Inside of it, `jax.lax.associative_scan` counts all products that it computes. They are about
    twice those of the recurrence step by step, so a layer may declare the latter.

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


def declared_flops(flops: int, function: Callable[..., Any], *args: Any) -> Any:
    """Runs `function(*args)`, which counts as `flops` operations, and its gradient as twice them.

    It is for kernels whose operations are not in the jaxpr (cuDNN), or depend on values there
    (loops of unknown length). The number replaces all that is counted inside.

    Args:
        flops: operations of one call, a multiplication and an addition being two.
        function: of arrays. Parameters are its arguments: it must not call `param`.

    Example:
        >>> import jax.numpy as jnp
        >>> from trainer.program.flops import flops
        >>> flops(lambda x: declared_flops(7, jnp.sin, x) @ x, jnp.ones((2, 2))) == 7 + 2 * 8
        True
    """

    def kernel(*args: Any) -> Any:
        return function(*args)

    kernel.__name__ = f'{DECLARED_FLOPS}{flops}'
    return jax.jit(kernel)(*args)
