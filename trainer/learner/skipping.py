import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from trainer.metrics import WeightedScalar
from trainer.symbolic.component import Component, OptionalNumber, require_above_zero


class SkipNonFinite(Component):
    """Skips a step whose gradients or loss are not finite: only the step count changes.

    Attributes:
        max_norm: also skips a step whose gradients have a global norm of this or more; the metric
            `skipped_for_norm` counts these.
    """

    max_norm: OptionalNumber = None

    def check(self) -> None:
        require_above_zero(self, 'max_norm')

    def is_valid(self, norm: jax.Array, loss: WeightedScalar) -> jax.Array:
        """False if a step with this global norm of the gradients and this loss is skipped."""
        # A loss that is not finite nearly always makes its gradients non-finite, too.
        is_valid = jnp.isfinite(norm) & jnp.isfinite(loss.total)
        return is_valid if self.max_norm is None else is_valid & (norm < self.max_norm)


def unless_skipped(
    update: Callable[[Any, Any, Any], tuple[Any, Any]],
    gradients: Any,
    state: Any,
    params: Any,
    is_valid: jax.Array,
) -> tuple[Any, Any]:
    """Updates the state of an optimizer; an invalid step leaves it unchanged.

    The updates are computed from the state that was selected. If they were computed from the new
    state, and only the result was selected, XLA would keep both: another copy of all moments.
    A `jax.lax.cond` keeps none either, but a GPU's host waits for its predicate in each step, and
    `jax.vmap` turns it into the selection at the end.

    Args:
        update: (gradients, state, params) -> (updates, new state), as in optax.
        is_valid: False in a step that is skipped; its updates mean nothing.

    Example:
        >>> import optax
        >>> optimizer = optax.sgd(0.1, momentum=0.9)
        >>> params = jnp.ones(2)
        >>> state = optimizer.init(params)
        >>> skipped = unless_skipped(optimizer.update, params, state, params, jnp.array(False))
        >>> skipped[1][0].trace.tolist()
        [0.0, 0.0]
    """
    given = gradients, state, params
    closed, (updates, new) = jax.make_jaxpr(update, return_shape=True)(*given)
    results = _selected(closed, jax.tree.leaves(given), jax.tree.leaves(state), is_valid)
    found: tuple[Any, Any] = jax.tree.unflatten(jax.tree.structure((updates, new)), results)
    return found


def _selected(
    closed: core.ClosedJaxpr, arguments: Sequence[Any], old: Sequence[Any], is_valid: jax.Array
) -> list[Any]:
    """Evaluates a jaxpr, each of whose last results is an old value unless `is_valid`."""
    jaxpr, known = closed.jaxpr, _Known(closed, arguments)
    others = len(jaxpr.outvars) - len(old)
    last = jaxpr.outvars[others:]
    number = collections.Counter(_variables(last))
    made = {var for equation in jaxpr.eqns for var in equation.outvars}
    before = {
        var: value
        for var, value in zip(last, old, strict=True)
        if not isinstance(var, core.Literal) and number[var] == 1 and var in made
        if var.aval.dtype == value.dtype  # Later equations expect the dtype of the new value.
    }
    part: list[core.JaxprEqn] = []
    for equation in jaxpr.eqns:
        part.append(equation)
        if chosen := [var for var in equation.outvars if var in before]:
            known.evaluate(part)
            part = []
            for var in chosen:
                known.values[var] = jnp.where(is_valid, known.values[var], before[var])
    known.evaluate(part)
    results = list(map(known.value, jaxpr.outvars))
    for index, (var, value) in enumerate(zip(last, old, strict=True), others):
        if isinstance(var, core.Literal) or var not in before:
            results[index] = jnp.where(is_valid, results[index], value)
    return results


class _Known:
    """Values of the variables of a jaxpr that are known."""

    def __init__(self, closed: core.ClosedJaxpr, arguments: Sequence[Any]) -> None:
        self._jaxpr = jaxpr = closed.jaxpr
        self.values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        self.values |= zip(jaxpr.invars, arguments, strict=True)
        self._used = {var for equation in jaxpr.eqns for var in _variables(equation.invars)}
        self._used.update(_variables(jaxpr.outvars))

    def value(self, var: Any) -> Any:
        return var.val if isinstance(var, core.Literal) else self.values[var]

    def evaluate(self, part: Sequence[core.JaxprEqn]) -> None:
        """Adds the results of some equations."""
        made = [var for each in part for var in each.outvars if var in self._used]
        read = dict.fromkeys(var for each in part for var in _variables(each.invars))
        needed = [var for var in read if var in self.values]
        alone = self._jaxpr.replace(constvars=[], invars=needed, outvars=made, eqns=list(part))
        function = core.jaxpr_as_fun(core.ClosedJaxpr(alone, []))
        found = function(*(self.values[var] for var in needed))
        self.values |= zip(made, found, strict=True)


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [each for each in atoms if not isinstance(each, core.Literal)]
