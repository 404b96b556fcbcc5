"""Usual values of fields: the values of published recipes, with which a search begins.

A component states them in its class, or computes them from the rest of the experiment:

    class Bulb(Component):
        watts: float
        usual = {'watts': UsualValue(60.0, 40.0, 75.0, 'Edison 1880')}

`usual_values` collects them by the ids of decisions, those in candidates included.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import pyglove as pg

from trainer.symbolic import fields
from trainer.symbolic.component import Component
from trainer.symbolic.derived import SHARED, Derived
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.user_code import described


@dataclasses.dataclass(frozen=True)
class UsualValue:
    """The usual value of a field.

    Attributes:
        value: a number, or for a choice a name, a component or the class of one.
        low: the central 68 % of the good values of published recipes lie from `low` to `high`, in
            the units of the field. Both are `value` where it is no number.
        source: the recipes.

    Raises:
        ValueError: the value lies outside of the interval, or there is no source.

    Example:
        >>> rate = UsualValue(1e-3, 3e-4, 3e-3, 'Kingma & Ba 2015')
        >>> rate.scaled(0.1).low < 1e-4
        True
    """

    value: Any
    low: Any
    high: Any
    source: str

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError(f'a usual value needs a source: {self.value!r}')
        if self.is_number:
            bounds = self.low, self.value, self.high
            if not all(map(math.isfinite, bounds)) or not self.low <= self.value <= self.high:
                raise ValueError(f'a usual value must lie from low to high: {self}')

    @property
    def is_number(self) -> bool:
        """True for a number; False for a candidate of a choice."""
        return isinstance(self.value, int | float) and not isinstance(self.value, bool)

    def scaled(self, factor: float, source: str = '') -> 'UsualValue':
        """The value and its interval times a factor, from the same source or another."""
        value, low, high = (factor * each for each in (self.value, self.low, self.high))
        return UsualValue(value, low, high, source or self.source)

    def rounded(self) -> 'UsualValue':
        """The nearest integer, in the same interval."""
        value = round(self.value)
        low, high = min(self.low, value), max(self.high, value)
        return dataclasses.replace(self, value=value, low=low, high=high)

    def is_candidate(self, candidate: Any) -> bool:
        """True if this value, which is no number, means `candidate`.

        Example:
            >>> choice('relu', 'Nair & Hinton 2010').is_candidate('relu')
            True
        """
        if isinstance(self.value, type):
            return type(candidate) is self.value
        return type(candidate) is type(self.value) and bool(pg.eq(candidate, self.value))


def choice(value: Any, source: str) -> UsualValue:
    """The usual candidate of a choice: a name, a component or the class of one."""
    return UsualValue(value, value, value, source)


def union(values: Iterable[UsualValue]) -> UsualValue:
    """The usual value where it depends on an open decision: the geometric middle of all numbers."""
    each = list(values)
    low, high = min(one.low for one in each), max(one.high for one in each)
    numbers = [one.value for one in each]
    is_positive = min(numbers) > 0
    middle = math.sqrt(min(numbers) * max(numbers)) if is_positive else numbers[0]
    sources = dict.fromkeys(one.source for one in each)
    return UsualValue(min(max(middle, low), high), low, high, '; '.join(sources))


def usual_values(experiment: Any) -> dict[str, UsualValue]:
    """Collects the usual values of all fields of an experiment, in which decisions may be open.

    Returns:
        The values by the ids of decisions: the path of the field, with the candidates on the way,
        as in `task.learner.optimizer[=0/2].b1`. A shared value has the usual value of the first
        field that is derived from it alone.

    Raises:
        UserError: a component states the value of a field that it does not have, or something else
            than a `UsualValue`, or its `usual_values` fails.

    Example:
        >>> class Bulb(Component):
        ...     watts: float
        ...     usual = {'watts': UsualValue(60.0, 40.0, 75.0, 'Edison 1880')}
        >>> lamp = pg.Dict(bulb=pg.oneof([None, Bulb(pg.floatv(10.0, 100.0))]))
        >>> {path: usual.value for path, usual in usual_values(lamp).items()}
        {'bulb[=1/2].watts': 60.0}
    """
    found: dict[str, UsualValue] = {}
    shared: dict[str, UsualValue] = {}
    _collect(experiment, experiment, pg.KeyPath(), found, shared)
    return shared | found


def _collect(
    node: Any,
    experiment: Any,
    path: pg.KeyPath,
    found: dict[str, UsualValue],
    shared: dict[str, UsualValue],
) -> None:
    if isinstance(node, pg.hyper.Choices):
        several = not isinstance(node, pg.hyper.OneOf)
        places = [pg.KeyPath(i, path) for i in range(node.num_choices)] if several else [path]
        for place in places:
            for i, candidate in enumerate(node.candidates):
                key = pg.geno.ConditionalKey(i, len(node.candidates))
                _collect(candidate, experiment, pg.KeyPath(key, place), found, shared)
    elif isinstance(node, pg.Object | pg.Dict | pg.List):
        if isinstance(node, Component):
            for name, usual in _stated(node, experiment, path).items():
                found[str(path + name)] = usual
                of_field = node.sym_get(name)
                if isinstance(of_field, Derived) and of_field.expression.startswith(f'{SHARED}.'):
                    shared.setdefault(of_field.expression, usual)
        for name, child in node.sym_items():
            _collect(child, experiment, pg.KeyPath(name, path), found, shared)


def _stated(node: Component, experiment: Any, path: pg.KeyPath) -> dict[str, UsualValue]:
    """The usual values of the fields of a component, integers for fields of integers."""
    stated: dict[str, UsualValue] = {}
    kind = type(node).__name__
    try:
        given = node.usual_values(experiment).items()
    except Exception as error:
        where = f'{path}: ' if path else ''
        raise UserError(f'{where}{kind}.usual_values fails: {described(error)}') from error
    for name, usual in given:
        if not node.sym_has(name):
            hint = nearest(name, map(str, node.__schema__.fields))
            raise UserError(
                f'{path + name}: {kind} states the usual value of a field that it does not have. '
                f'{hint}'.strip()
            )
        if not isinstance(usual, UsualValue):
            raise UserError(f'{path + name}: {kind} must state a UsualValue: {usual!r}')
        is_integer = usual.is_number and fields.wants_integer(fields.spec_of(node, name))
        stated[name] = usual.rounded() if is_integer else usual
    return stated


def span(value: Any) -> tuple[float, float] | None:
    """The lowest and the highest number that a value or a decision can be; None if it is neither.

    Example:
        >>> span(8), span(pg.oneof([32, 64])), span('relu')
        ((8, 8), (32, 64), None)
    """
    if isinstance(value, pg.hyper.Float):
        return value.min_value, value.max_value
    numbers = list(value.candidates) if isinstance(value, pg.hyper.OneOf) else [value]
    if not all(type(number) in (int, float) for number in numbers):
        return None
    return min(numbers), max(numbers)


def span_at(experiment: Any, path: str) -> tuple[float, float] | None:
    """The same for the value at a path; None if there is none.

    A value that is derived from a shared one has its span.
    """
    if not isinstance(experiment, pg.Object | pg.Dict) or not experiment.sym_has(path):
        return None
    value = experiment.sym_get(path)
    if isinstance(value, Derived):
        is_shared = value.expression.startswith(f'{SHARED}.')
        return span_at(experiment, value.expression) if is_shared else None
    return span(value)


def over(
    bounds: tuple[float, float] | None, rule: Callable[[float], UsualValue]
) -> UsualValue | None:
    """Applies a rule, which maps a number to a usual value, to both ends of a span."""
    return None if bounds is None else union(rule(each) for each in dict.fromkeys(bounds))
