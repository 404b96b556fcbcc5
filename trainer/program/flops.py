"""Floating-point operations of a computation, counted in its jaxpr.

XLA's own cost analysis counts the body of a scan once, and only after compiling.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from trainer.layers.declared_flops import COUNTED_PRODUCTS, DECLARED_FLOPS

_DECLARED = re.compile(rf'{DECLARED_FLOPS}(\d+)')
_RECOMPUTED = 'rematted_computation'
"""Name of JAX for operations of the forward pass that a backward pass repeats."""


def flops(function: Callable[..., Any], *args: Any) -> int:
    """Counts the operations of the matrix products and convolutions in `function(*args)`.

    A multiplication and the following addition are two operations. Each row of a `ragged_dot`
    counts for one group. A triangular solve counts as half of a product. Elementwise operations do
    not count, as is usual: they are few, and bound by memory. Products in `counted_products()` do,
    as those of a convolution or recurrence. `declared_flops` replaces all that is inside: without
    it, kernels of cuDNN count 0, and kernels of Pallas once for each point of their grid.
    `tests/conformance/test_layer_flops.py` compares each layer with XLA's count.

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
    return _of_jaxpr(jax.make_jaxpr(function)(*args), _Place(scope))


class _Place(NamedTuple):
    """The surroundings of an equation.

    Attributes:
        scope: pattern of the scopes that are keys.
        key: of the innermost scope.
        is_counted: elementwise products count.
        is_backward: it belongs to a backward pass.
    """

    scope: re.Pattern[str] | None
    key: str = ''
    is_counted: bool = False
    is_backward: bool = False

    def inside(self, names: str) -> '_Place':
        """The place of an equation inside, by the stack of names that were opened there."""
        keys = self.scope.findall(names) if self.scope else []
        return self._replace(
            key=keys[-1] if keys else self.key,
            is_counted=self.is_counted or COUNTED_PRODUCTS in names,
            is_backward=(self.is_backward or 'transpose(' in names) and _RECOMPUTED not in names,
        )


def _of_jaxpr(jaxpr: Any, place: _Place) -> Counter[str]:
    found: Counter[str] = Counter()
    for equation in getattr(jaxpr, 'jaxpr', jaxpr).eqns:
        found += _of_equation(equation, place.inside(str(equation.source_info.name_stack)))
    return found


def _of_equation(equation: Any, place: _Place) -> Counter[str]:
    if (number := _of_itself(equation, place)) is not None:
        return Counter({place.key: number})
    inner = [_of_jaxpr(jaxpr, place) for jaxpr in _inner(equation.params)]
    if equation.primitive.name == 'cond':
        return max(inner, key=Counter.total)
    times = _times(equation)
    return Counter({key: times * sum(each[key] for each in inner) for key in set().union(*inner)})


def _of_itself(equation: Any, place: _Place) -> int | None:
    """Operations of an equation without looking inside; None if they are those inside."""
    name, params = equation.primitive.name, equation.params
    if declared := _DECLARED.fullmatch(str(params.get('name'))):
        inside = next(_inner(params), None)
        # A backward pass may move an empty part of the kernel out of a loop.
        is_empty = inside is not None and not inside.eqns
        return 0 if is_empty else int(declared[1]) * (2 if place.is_backward else 1)
    if name == 'mul':
        is_float = jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating)
        return 2 * _size(equation.outvars[0]) if place.is_counted and is_float else None
    of_kind = _KINDS.get(name)
    return of_kind(equation) if of_kind else None


def _times(equation: Any) -> int:
    """Number of times that an equation runs the jaxprs inside of it."""
    if equation.primitive.name == 'pallas_call':
        return math.prod(n for n in equation.params['grid_mapping'].grid if isinstance(n, int))
    return int(equation.params['length']) if equation.primitive.name == 'scan' else 1


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                yield item


def _of_product(equation: Any) -> int:
    (contracted, _), _ = equation.params['dimension_numbers']
    return _of_sum(equation, contracted)


def _of_ragged_product(equation: Any) -> int:
    numbers = equation.params['ragged_dot_dimension_numbers']
    (contracted, _), _ = numbers.dot_dimension_numbers
    total = _of_sum(equation, contracted)
    # Groups that divide the sum, as for the gradient of kernels, are axes of the result.
    is_of_groups = numbers.lhs_ragged_dimensions[0] in contracted
    return total // equation.invars[2].aval.shape[-1] if is_of_groups else total


def _of_triangular_solve(equation: Any) -> int:
    triangle, right = (each.aval.shape for each in equation.invars)
    return triangle[-1] * math.prod(right)


def _of_sum(equation: Any, contracted: Sequence[int]) -> int:
    left = equation.invars[0].aval.shape
    return 2 * _size(equation.outvars[0]) * math.prod(left[axis] for axis in contracted)


def _of_convolution(equation: Any) -> int:
    kernel = equation.invars[1].aval.shape
    output_features = kernel[equation.params['dimension_numbers'].rhs_spec[0]]
    return 2 * _size(equation.outvars[0]) * math.prod(kernel) // output_features


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)


_KINDS: dict[str, Callable[[Any], int]] = {
    'dot_general': _of_product,
    'conv_general_dilated': _of_convolution,
    'ragged_dot_general': _of_ragged_product,
    'triangular_solve': _of_triangular_solve,
}
"""Operations of primitives."""
