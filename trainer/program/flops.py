"""Floating-point operations of a computation, counted in its jaxpr.

XLA's own cost analysis counts the body of a scan once, and only after compiling.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from trainer.layers.counting import COUNTED_PRODUCTS


def flops(function: Callable[..., Any], *args: Any) -> int:
    """Counts the operations of the matrix products and convolutions in `function(*args)`.

    A multiplication and the following addition are two operations. Elementwise operations do not
    count, as is usual: they are few, and bound by memory. Products in `counted_products()`
    (`trainer.layers.base`) do, as those of a convolution. Custom kernels (Pallas, cuDNN) do not
    count. `tests/conformance/test_layer_flops.py` compares each layer with XLA's count.

    A loop of unknown length counts once. Of the branches of a condition the most expensive one
    counts. Recomputation (`jax.checkpoint`) counts only if `function` contains a backward pass.

    Example:
        >>> import jax.numpy as jnp
        >>> x, w = jnp.ones((3, 4)), jnp.ones((4, 5))
        >>> flops(lambda x, w: jnp.tanh(x @ w), x, w) == 2 * 3 * 4 * 5
        True
    """
    return flops_by_scope(function, None, *args).total()


def flops_by_scope(
    function: Callable[..., Any], scope: re.Pattern[str] | None, *args: Any
) -> Counter[str]:
    """Counts operations by the scopes that `jax.named_scope` opens in `function`.

    Args:
        function, *args: as for `flops`.
        scope: matches the names of scopes; its first group is the key. Operations in nested scopes
            belong to the innermost. None for no scopes.

    Returns:
        Operations by key; '' for operations outside of all of these scopes.

    Example:
        >>> import jax.numpy as jnp
        >>> def function(x, w):
        ...     with jax.named_scope('part:square'):
        ...         w = w @ w
        ...     return x @ w
        >>> x, w = jnp.ones((3, 4)), jnp.ones((4, 4))
        >>> dict(flops_by_scope(function, re.compile(r'part:([a-z]*)'), x, w))
        {'square': 128, '': 96}
    """
    return _of_jaxpr(jax.make_jaxpr(function)(*args), scope, '', False)


def _of_jaxpr(jaxpr: Any, scope: re.Pattern[str] | None, outer: str, counted: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    for equation in getattr(jaxpr, 'jaxpr', jaxpr).eqns:
        found += _of_equation(equation, scope, outer, counted)
    return found


def _of_equation(
    equation: Any, scope: re.Pattern[str] | None, outer: str, counted: bool
) -> Counter[str]:
    name, params = equation.primitive.name, equation.params
    # An inner jaxpr has the names of scopes opened inside of it.
    stack = str(equation.source_info.name_stack)
    names = scope.findall(stack) if scope else []
    key, counted = names[-1] if names else outer, counted or COUNTED_PRODUCTS in stack
    if counted and name == 'mul' and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating):
        return Counter({key: 2 * _size(equation.outvars[0])})
    if name == 'dot_general':
        return Counter({key: _of_product(equation)})
    if name == 'conv_general_dilated':
        return Counter({key: _of_convolution(equation)})
    inner = [_of_jaxpr(jaxpr, scope, key, counted) for jaxpr in _inner(params)]
    if name == 'cond':
        return max(inner, key=Counter.total)
    times = params['length'] if name == 'scan' else 1
    return Counter({key: times * sum(each[key] for each in inner) for key in set().union(*inner)})


def _inner(params: dict[str, Any]) -> Iterator[Any]:
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
