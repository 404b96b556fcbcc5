from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

_CALLS = ('jit', 'remat2', 'checkpoint', 'closed_call', 'custom_jvp_call', 'custom_vjp_call')


def unrolled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with each scan as equations one after another.

    Example:
        >>> def cumulated(x):
        ...     return jax.lax.scan(lambda total, each: (total + each, total), 0.0, x)[1]
        >>> unrolled(cumulated)(jnp.arange(4.0)).tolist()
        [0.0, 0.0, 1.0, 3.0]
        >>> 'scan' in str(jax.make_jaxpr(unrolled(cumulated))(jnp.arange(4.0)))
        False
    """

    def run(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        results = _evaluated(closed, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return run


def _evaluated(closed: Any, args: Sequence[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values |= zip(jaxpr.invars, args, strict=True)

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else values[variable]

    for equation in jaxpr.eqns:
        results = _results(equation, [read(each) for each in equation.invars])
        values |= zip(equation.outvars, results, strict=True)
    return [read(each) for each in jaxpr.outvars]


def _results(equation: Any, args: list[Any]) -> list[Any]:
    name, params = equation.primitive.name, equation.params
    if name == 'scan':
        return _of_scan(params, args)
    inner = [params[key] for key in ('jaxpr', 'call_jaxpr') if key in params]
    if name in _CALLS and inner:
        closed = inner[0] if hasattr(inner[0], 'consts') else core.ClosedJaxpr(inner[0], ())
        return _evaluated(closed, args)
    results = equation.primitive.bind(*args, **params)
    return list(results) if equation.primitive.multiple_results else [results]


def _of_scan(params: Any, args: list[Any]) -> list[Any]:
    first, last = params['num_consts'], params['num_consts'] + params['num_carry']
    constants, carry, inputs = args[:first], args[first:last], args[last:]
    steps = range(params['length'])
    outputs: list[Any] = [None] * params['length']
    for step in reversed(steps) if params['reverse'] else steps:
        each = [*constants, *carry, *(array[step] for array in inputs)]
        results = _evaluated(params['jaxpr'], each)
        carry, outputs[step] = results[: params['num_carry']], results[params['num_carry'] :]
    return [*carry, *(jnp.stack(arrays) for arrays in zip(*outputs, strict=True))]
