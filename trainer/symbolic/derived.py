"""Derived values: fields that follow other fields, such as a head size that follows the width.

A derived value stands in a field until the experiment is entered (`resolve`). It may read what is
still to be decided, and is then worked out in every trial, once the decisions are made.
"""

import functools
from collections.abc import Iterator
from typing import Any, TypeVar

import pyglove as pg

from trainer.symbolic import fields, names
from trainer.symbolic.component import unchecked
from trainer.symbolic.errors import UserError
from trainer.symbolic.expressions import Expression, Path

V = TypeVar('V')

SHARED = 'shared'
"""The field of an experiment that holds values which derived values read in several places."""

_OVERRIDES = ('smoke', 'sub_experiments')


class Derived(pg.Object, pg.symbolic.PureSymbolic):
    """A value that is worked out from others. It may stand in any field; see `derived`."""

    expression: str

    def _on_bound(self) -> None:
        super()._on_bound()
        # To PyGlove, what is decided or derived may stand anywhere.
        if not isinstance(self.expression, str):
            raise TypeError(f'expected the text of an expression: {self.expression!r}')
        parsed(self.expression)

    def format(self, *unused: Any, **unused_named: Any) -> str:
        return f'derived({self.expression!r})'


Derived.register_for_deserialization('trainer.Derived')


def derived(expression: str) -> Any:
    """A value that follows other values of the experiment.

    The first name of a path is looked for in the object whose field this is, then in the owner of
    that object, and so on up to the experiment: `num_heads` is the field beside this one, and
    `task.model.stack.repeats` can be read from everywhere.

    Args:
        expression: see `trainer.symbolic.expressions.Expression`.

    Raises:
        UserError: the expression cannot be read.

    Example:
        >>> block = pg.Dict(width=512, heads=pg.oneof([4, 8]), head_dim=derived('width // heads'))
        >>> resolve(pg.materialize(block, pg.DNA(1))).head_dim
        64
    """
    return Derived(expression)


@functools.lru_cache(maxsize=1024)
def parsed(text: str) -> Expression:
    """The expression that a text stands for.

    Raises:
        UserError: it cannot be read.
    """
    return Expression(text)


def resolve(value: V) -> V:
    """A deep copy with results in place of derived values; `value` itself where there are none.

    What reads a decision that is still open stays as it is. So does what stands in the experiment's
    field `shared` and names nothing there: it is resolved where the shared value is used, and that
    shared value is left out once nothing is open any more.

    Raises:
        UserError: a derived value names what is not there, or follows from itself.
        ValueError: a result does not exist or does not fit its field, or the values do not fit
            together, says a component's `check`.
    """
    if next(derived_values(value), None) is None:
        return value
    return resolve_in_place(pg.clone(value, deep=True))


def resolve_in_place(value: V) -> V:
    """`resolve` in place, for a value that nobody else holds.

    Raises:
        UserError, ValueError: as `resolve`.
    """
    while results := _Resolver(value).results():
        if isinstance(value, Derived):
            return results[value.sym_path]
        # All at once: components are checked when everything is in place.
        value.rebind(results)  # type: ignore[attr-defined]
    _drop_patterns(value)
    return value


def check_names(value: Any) -> None:
    """Checks the names in all derived values, also in those that only some decisions bring in.

    Raises:
        UserError: one names what is not there, or follows from itself.
    """
    resolver = _Resolver(value)
    for place in derived_values(value, inside_decisions=True):
        try:
            resolver.result(place)
        except (_OpenError, ValueError):
            pass
        except _UnknownNameError:
            if not _in_shared(place):
                raise


def derived_values(value: Any, inside_decisions: bool = False) -> Iterator[Derived]:
    """The derived values in a symbolic value.

    Args:
        value: any value.
        inside_decisions: also those in the candidates of open decisions.
    """
    if isinstance(value, Derived):
        yield value
    elif isinstance(value, pg.hyper.HyperPrimitive) and not inside_decisions:
        return
    elif isinstance(value, pg.Object | pg.Dict | pg.List):
        is_root = value.sym_parent is None
        for key, child in value.sym_items():
            # Overrides that are kept for later are resolved where they are put.
            if not (is_root and key in _OVERRIDES):
                yield from derived_values(child, inside_decisions)


class _OpenError(Exception):
    """An operand is still to be decided."""


class _UnknownNameError(UserError):
    """A derived value names what is not there."""


class _Resolver:
    """Works out the derived values in a symbolic value, each once."""

    def __init__(self, root: Any) -> None:
        self._root = root
        # With the places themselves, so that no other object comes to have the id of one.
        self._known: dict[int, tuple[Derived, Any]] = {}
        self._working: list[Derived] = []

    def results(self) -> dict[pg.KeyPath, Any]:
        """What can be resolved, by path."""
        found = {}
        for place in derived_values(self._root):
            try:
                found[place.sym_path] = self.result(place)
            except _OpenError:
                continue
            except _UnknownNameError:
                if not _in_shared(place):
                    raise
        return found

    def result(self, place: Derived) -> Any:
        """What comes out at a place, as its field holds it. Nobody else holds that object."""
        if id(place) not in self._known:
            if any(place is other for other in self._working):
                circle = ', '.join(str(other.sym_path) for other in self._working)
                raise UserError(f'{circle}: derived values that follow from themselves')
            self._working.append(place)
            try:
                self._known[id(place)] = place, self._computed(place)
            finally:
                self._working.pop()
        return pg.clone(self._known[id(place)][1], deep=True)

    def _computed(self, place: Derived) -> Any:
        where = f'{place.sym_path}: {place}'
        try:
            value = parsed(place.expression).evaluate(lambda path: self._look_up(place, path))
        except RecursionError:
            raise UserError(f'{where} follows from too many others') from None
        except (ArithmeticError, TypeError) as error:
            raise ValueError(f'{where}: {error}') from error
        return _fitted(place, value, where)

    def _look_up(self, place: Derived, path: Path) -> Any:
        value = self._first(place, path[0])
        for i, key in enumerate(path[1:], 1):
            value = self._opened(value)
            if not _has(value, key):
                raise _unknown_key(place, path[:i], key, value)
            value = _child(value, key)
        return self._complete(self._opened(value))

    def _first(self, place: Derived, name: str | int) -> Any:
        """What the first name of a path stands for."""
        owners = list(_owners(place))
        for owner in owners:
            if _has(owner, name) and owner.sym_getattr(name) is not place:
                return _child(owner, name)
        if not owners or owners[-1] is not self._root:
            # A copy of what `shared` holds, which has not been put in its place yet.
            raise _OpenError
        fields_around = [str(key) for owner in owners for key in owner.sym_keys()]
        legal = sorted({*fields_around} - {str(name)})
        raise _UnknownNameError(
            f'{place.sym_path}: {place} names {name}, which is no field here, nor of what this '
            f'is part of. {names.nearest(str(name), legal)}'.strip()
        )

    def _opened(self, value: Any) -> Any:
        """A value of which one can read fields."""
        if isinstance(value, pg.hyper.HyperValue) or value == pg.MISSING_VALUE:
            raise _OpenError
        return self.result(value) if isinstance(value, Derived) else value

    def _complete(self, value: Any) -> Any:
        """A value without anything derived inside."""
        if not isinstance(value, pg.Object | pg.Dict | pg.List):
            return value
        if not pg.is_deterministic(value):
            raise _OpenError
        inner = {}
        for place in derived_values(value):
            try:
                inner[place.sym_path - value.sym_path] = self.result(place)
            except _UnknownNameError:
                if not _in_shared(place):
                    raise
        if inner:
            value = value.clone(deep=True)
            with unchecked():
                value.rebind(inner)
        return value


def _drop_patterns(value: Any) -> None:
    """Drops the shared values that are not complete by themselves, once they are not needed."""
    left = list(derived_values(value))
    if left and all(map(_in_shared, left)) and pg.is_deterministic(value):
        incomplete = {pg.KeyPath(place.sym_path.keys[:2]) for place in left}
        value.rebind({path: pg.MISSING_VALUE for path in incomplete})


def _in_shared(place: Derived) -> bool:
    keys = place.sym_path.keys
    return len(keys) > 1 and bool(keys[0] == SHARED)


def _owners(place: Derived) -> Iterator[Any]:
    """The objects and mappings around a place, nearest first."""
    node = place.sym_parent
    while node is not None:
        # A decision is not there any more when what is inside it comes to be read.
        if isinstance(node, pg.Object | pg.Dict) and not isinstance(node, pg.hyper.HyperValue):
            yield node
        node = node.sym_parent


def _unknown_key(place: Derived, before: Path, key: str | int, value: Any) -> UserError:
    owner = str(pg.KeyPath(list(before)))
    if isinstance(value, pg.List):
        has = f'{owner} is a list of {len(value)} items'
    elif isinstance(value, pg.Object | pg.Dict):
        legal = [str(name) for name in value.sym_keys()]
        has = f'{names.nearest(str(key), legal)} {owner} has: {", ".join(legal) or "nothing"}'
    else:
        has = f'{owner} is {fields.shown(value)}'
    full = pg.KeyPath([*before, key])
    return _UnknownNameError(
        f'{place.sym_path}: {place} names {full}, which is not there. {has.strip()}'
    )


def _has(owner: Any, key: str | int) -> bool:
    if isinstance(owner, pg.List):
        return isinstance(key, int) and -len(owner) <= key < len(owner)
    return isinstance(owner, pg.Object | pg.Dict) and key in owner.sym_keys()


def _child(owner: Any, key: str | int) -> Any:
    if isinstance(owner, pg.List):
        return owner.sym_getattr(key)
    # For fields that take their value from what they are part of, and may not have one yet.
    return owner.sym_inferred(key, pg.MISSING_VALUE)


def _fitted(place: Derived, value: Any, where: str) -> Any:
    """A result as the field of a place holds it.

    Raises:
        ValueError: it does not fit.
    """
    owner = place.sym_parent
    spec = None if owner is None else fields.spec_of(owner, place.sym_path.key)
    if isinstance(value, float) and value.is_integer() and fields.wants_integer(spec):
        value = int(value)
    try:
        return fields.fit(spec, pg.clone(value, deep=True), where)
    except UserError as error:
        raise ValueError(str(error)) from error
