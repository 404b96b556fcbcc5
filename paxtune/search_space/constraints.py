"""Constraints: what an experiment must satisfy to be worth suggesting.

An experiment that a constraint refuses is never suggested, so no trial is wasted on it. The
`check` of any component refuses in the same way, with `Infeasible` or any other ValueError.
"""

import functools
from typing import Any

import pyglove as pg

from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError
from trainer.symbolic.expressions import Expression, Path
from trainer.symbolic.names import nearest


class Infeasible(ValueError):
    """An experiment that cannot be run, or that nobody wants. The message is the reason."""


class Constraint(Component):
    """A predicate on experiments. Subclasses give `require`."""

    def require(self, experiment: Any) -> None:
        """Refuses an experiment.

        Args:
            experiment: a concrete one, without decisions; left as it is.

        Raises:
            Infeasible: with the reason, where it is not wanted.
        """
        raise NotImplementedError(type(self).__name__)


class Requires(Constraint):
    """A condition that every experiment must meet.

    Attributes:
        condition: an expression of paths that start at the experiment, such as
            'task.model.dims % task.model.heads == 0'; true or false.
        reason: what to say of experiments that do not meet it.

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
        """Refuses an experiment that does not meet the condition.

        Raises:
            Infeasible: the experiment does not meet it.
            UserError: the condition names a path that is not there, cannot be computed, or is
                neither true nor false.
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
            raise LookupError(_not_there(value, path, depth))
        # Unlike `sym_getattr`, this gives what a field inherits or derives.
        value = value.sym_inferred(key)
    return value


def _not_there(owner: Any, path: Path, depth: int) -> str:
    """What to say where `owner`, found at the first `depth` keys, has no more to go on with."""
    here, full = pg.KeyPath(list(path[:depth])), pg.KeyPath(list(path))
    if not isinstance(owner, pg.symbolic.Symbolic):
        return f'there is no {full}: {here} is {owner!r}'
    keys = [str(pg.KeyPath(key, here)) for key in owner.sym_keys()]
    wrong = str(pg.KeyPath(path[depth], here))
    hint = nearest(wrong, keys) or f'There is {", ".join(keys) or "nothing"}.'
    return f'there is no {wrong}. {hint}'
