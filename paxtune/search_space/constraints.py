"""Constraints: conditions on concrete experiments.

An experiment that violates a constraint is never suggested. The `check` of a component has the same
effect, with `Infeasible` or any other ValueError.
"""

import functools
from typing import Any

import pyglove as pg

from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.expressions import Expression, Path


class Infeasible(ValueError):
    """An experiment that cannot run, or is unwanted. The message is the reason."""


class Constraint(Component):
    """Predicate on experiments. Subclasses define `require`."""

    def require(self, experiment: Any) -> None:
        """Raises Infeasible, with the reason, if an experiment violates the constraint.

        The experiment is concrete, and is not modified.
        """
        raise NotImplementedError(type(self).__name__)


class Requires(Constraint):
    """Condition that every experiment must meet.

    Attributes:
        condition: boolean expression of paths that start at the experiment, such as
            'task.model.dims % task.model.heads == 0'.
        reason: message for experiments that violate it.

    Example:
        >>> constraint = Requires('dims % heads == 0', 'heads must divide dims')
        >>> constraint.require(pg.Dict(dims=64, heads=4))
        >>> constraint.require(pg.Dict(dims=64, heads=3))
        Traceback (most recent call last):
        ...
        paxtune.search_space.constraints.Infeasible: heads must divide dims
    """

    condition: str
    reason: str

    def check(self) -> None:
        try:
            _expression(self.condition)
        except UserError as error:
            raise ValueError(f'condition: {error}') from None

    def require(self, experiment: Any) -> None:
        """Raises if an experiment violates the condition.

        Raises:
            Infeasible: the experiment violates the condition.
            UserError: the condition names an unknown path, cannot be computed, or is not boolean.
        """
        try:
            met = _expression(self.condition).evaluate(functools.partial(_value_at, experiment))
        except (ArithmeticError, LookupError, TypeError) as error:
            raise UserError(f'the constraint {self.condition!r} has no value: {error}') from error
        if not isinstance(met, bool):
            raise UserError(
                f'the constraint {self.condition!r} must be true or false. It is {met!r}.'
            )
        if not met:
            raise Infeasible(self.reason)


_expression = functools.lru_cache(maxsize=256)(Expression)


def _value_at(experiment: Any, path: Path) -> Any:
    value = experiment
    for depth, key in enumerate(path):
        if not (isinstance(value, pg.symbolic.Symbolic) and value.sym_hasattr(key)):
            raise LookupError(_unknown_path(value, path, depth))
        # Unlike `sym_getattr`, this resolves inherited and derived values.
        value = value.sym_inferred(key)
    return value


def _unknown_path(owner: Any, path: Path, depth: int) -> str:
    """Message for a path that ends at `owner`, the value of its first `depth` keys."""
    here, full = pg.KeyPath(list(path[:depth])), pg.KeyPath(list(path))
    if not isinstance(owner, pg.symbolic.Symbolic):
        return f'{full} does not exist: {here} is {owner!r}'
    keys = [str(pg.KeyPath(key, here)) for key in owner.sym_keys()]
    wrong = str(pg.KeyPath(path[depth], here))
    hint = nearest(wrong, keys) or f'Known: {", ".join(keys) or "nothing"}.'
    return f'{wrong} does not exist. {hint}'
