"""Floating-point operations of a computation, counted in what JAX traced of it.

XLA's own cost analysis counts the body of a scan once, and only after compiling.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core


def flops(function: Callable[..., Any], *args: Any) -> int:
    """Operations of the matrix products and convolutions in `function(*args)`.

    A multiplication and the addition that follows it are two. What is done element by element is
    left out, as is usual: it is little beside the products, and bound by memory. Kernels written
    by hand (Pallas, cuDNN) are not seen.

    A loop of unknown length counts once, and of the branches of a condition the dearest. What a
    backward pass computes again (`jax.checkpoint`) is counted only where `function` itself is or
    has a backward pass.

    Args:
        function: is traced, not compiled or run.
        *args: arrays, or `jax.ShapeDtypeStruct`s that stand for them.

    Example:
        >>> import jax.numpy as jnp
        >>> x, w = jnp.ones((3, 4)), jnp.ones((4, 5))
        >>> flops(lambda x, w: jnp.tanh(x @ w), x, w) == 2 * 3 * 4 * 5
        True
    """
    return _of_jaxpr(jax.make_jaxpr(function)(*args))


def _of_jaxpr(jaxpr: Any) -> int:
    jaxpr = getattr(jaxpr, 'jaxpr', jaxpr)
    return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    if name == 'dot_general':
        return _of_product(equation)
    if name == 'conv_general_dilated':
        return _of_convolution(equation)
    inner = [_of_jaxpr(jaxpr) for jaxpr in _inner(params)]
    if name == 'cond':
        return max(inner)
    times = params['length'] if name == 'scan' else 1
    return times * sum(inner)


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs that an equation calls, whatever its kind calls the parameter they stand in."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                yield item


def _of_product(equation: Any) -> int:
    (contracted, _), _ = equation.params['dimension_numbers']
    left = equation.invars[0].aval.shape
    return 2 * _size(equation.outvars[0]) * math.prod(left[axis] for axis in contracted)


def _of_convolution(equation: Any) -> int:
    kernel = equation.invars[1].aval.shape
    output_features = kernel[equation.params['dimension_numbers'].rhs_spec[0]]
    return 2 * _size(equation.outvars[0]) * math.prod(kernel) // output_features


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)
