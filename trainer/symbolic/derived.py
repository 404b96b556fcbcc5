"""Derived values: fields that follow other fields, such as a head size that follows the width.

A derived value occupies a field until `resolve` replaces it. It may read open decisions; then each
trial resolves it with the values of the decisions.
"""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyglove as pg

from trainer.symbolic import fields
from trainer.symbolic.component import unchecked
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.expressions import Expression, Path
from trainer.symbolic.identity import OVERRIDES

V = TypeVar('V')

SHARED = 'shared'
"""Field of an experiment for values that several derived values read."""

_parsed = functools.lru_cache(maxsize=1024)(Expression)

_PLAIN = re.compile(r'[\w.\[\]]+')


def _operation(form: str) -> Callable[['Derived', Any], 'Derived']:
    def operation(self: 'Derived', other: Any) -> 'Derived':
        if not isinstance(other, int | float | Derived):
            return NotImplemented
        return Derived(form.format(_operand(self), _operand(other)))

    return operation


def _operand(value: Any) -> str:
    text = value.expression if isinstance(value, Derived) else repr(value)
    return text if _PLAIN.fullmatch(text) else f'({text})'


class Derived(pg.Object, pg.symbolic.PureSymbolic):
    """A value computed from others. It may occupy any field; see `derived`.

    Arithmetic makes further derived values.

    Example:
        >>> width = derived('shared.width')
        >>> 4 * width // (width - 2)
        derived('(4 * shared.width) // (shared.width - 2)')
    """

    expression: str

    __add__, __radd__ = _operation('{0} + {1}'), _operation('{1} + {0}')
    __sub__, __rsub__ = _operation('{0} - {1}'), _operation('{1} - {0}')
    __mul__, __rmul__ = _operation('{0} * {1}'), _operation('{1} * {0}')
    __truediv__, __rtruediv__ = _operation('{0} / {1}'), _operation('{1} / {0}')
    __floordiv__, __rfloordiv__ = _operation('{0} // {1}'), _operation('{1} // {0}')
    __mod__, __rmod__ = _operation('{0} % {1}'), _operation('{1} % {0}')
    __pow__, __rpow__ = _operation('{0} ** {1}'), _operation('{1} ** {0}')

    __iter__ = None  # Or Python counts up keys for ever.

    def __getitem__(self, key: int | str) -> 'Derived':
        return Derived(f'{self.expression}[{key!r}]')

    def __bool__(self) -> bool:
        raise TypeError(f'{self} is true or false only in a trial: use derived("… if … else …")')

    def _on_bound(self) -> None:
        super()._on_bound()
        # PyGlove accepts decisions and derived values in any field.
        if not isinstance(self.expression, str):
            raise TypeError(f'expected the text of an expression: {self.expression!r}')
        _parsed(self.expression)

    def format(self, *unused: Any, **unused_named: Any) -> str:
        return f'derived({self.expression!r})'


Derived.register_for_deserialization('trainer.Derived')


def derived(expression: str) -> Any:
    """Makes a value that follows other values of the experiment.

    The first name of a path is a field of the object that contains the value, of the owner of that
    object, and so on up to the experiment. So `num_heads` is the field beside this one, and
    `task.model.stack.repeats` can be read from any object.

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


def resolve(value: V) -> V:
    """Replaces derived values by their results in a deep copy; returns `value` if there are none.

    A derived value that reads an open decision stays. So does one in the field `shared` of the
    experiment that names no field there. It is resolved where the shared value is used. Once no
    decision is open, such a shared value is dropped.

    Raises:
        UserError: a derived value names an unknown field, or follows from itself.
        ValueError: a result is undefined or does not fit its field, or the `check` of a component
            rejects the values.
    """
    if next(derived_values(value), None) is None:
        return value
    return resolve_in_place(pg.clone(value, deep=True))


def resolve_in_place(value: V) -> V:
    """The same as `resolve`, in place."""
    while results := _Resolver(value).results():
        if isinstance(value, Derived):
            return results[value.sym_path]
        # All at once: components are checked with all values in place.
        value.rebind(results)  # type: ignore[attr-defined]
    _drop_patterns(value)
    return value


def check_names(value: Any) -> None:
    """Checks the names in all derived values, including those in candidates of decisions.

    Raises:
        UserError: a derived value names an unknown field, or follows from itself.
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
    """Yields derived values, if asked also those in the candidates of open decisions."""
    if isinstance(value, Derived):
        yield value
    elif isinstance(value, pg.hyper.HyperPrimitive) and not inside_decisions:
        return
    elif isinstance(value, pg.Object | pg.Dict | pg.List):
        is_root = value.sym_parent is None
        for key, child in value.sym_items():
            # Overrides for later use are resolved after their assignment.
            if not (is_root and key in OVERRIDES):
                yield from derived_values(child, inside_decisions)


class _OpenError(Exception):
    """An operand is an open decision."""


class _UnknownNameError(UserError):
    """A derived value names an unknown field."""


class _Resolver:
    """Computes the derived values in a symbolic value, each once."""

    def __init__(self, root: Any) -> None:
        self._root = root
        # Contains the objects themselves, so that their ids stay unique.
        self._known: dict[int, tuple[Derived, Any]] = {}
        self._working: list[Derived] = []

    def results(self) -> dict[pg.KeyPath, Any]:
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
        """A new copy of the result at a place, converted to the type of its field."""
        if id(place) not in self._known:
            if any(place is other for other in self._working):
                cycle = ', '.join(str(other.sym_path) for other in self._working)
                raise UserError(f'{cycle}: derived values that follow from themselves')
            self._working.append(place)
            try:
                self._known[id(place)] = place, self._computed(place)
            finally:
                self._working.pop()
        return pg.clone(self._known[id(place)][1], deep=True)

    def _computed(self, place: Derived) -> Any:
        where = f'{place.sym_path}: {place}'
        try:
            value = _parsed(place.expression).evaluate(lambda path: self._look_up(place, path))
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
        owners = list(_owners(place))
        for owner in owners:
            if _has(owner, name) and owner.sym_getattr(name) is not place:
                return _child(owner, name)
        if not owners or owners[-1] is not self._root:
            # A copy of a value in `shared`, which is not in its place yet.
            raise _OpenError
        fields_around = [str(key) for owner in owners for key in owner.sym_keys()]
        legal = sorted({*fields_around} - {str(name)})
        raise _UnknownNameError(
            f'{place.sym_path}: {place} names {name}, which is no field here, nor of any owner '
            f'of this field. {nearest(str(name), legal)}'.strip()
        )

    def _opened(self, value: Any) -> Any:
        if isinstance(value, pg.hyper.HyperValue) or value == pg.MISSING_VALUE:
            raise _OpenError
        return self.result(value) if isinstance(value, Derived) else value

    def _complete(self, value: Any) -> Any:
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
    """Drops shared values with unresolved derived values, once no decision is open."""
    left = list(derived_values(value))
    if left and all(map(_in_shared, left)) and pg.is_deterministic(value):
        incomplete = {pg.KeyPath(place.sym_path.keys[:2]) for place in left}
        value.rebind({path: pg.MISSING_VALUE for path in incomplete})


def _in_shared(place: Derived) -> bool:
    keys = place.sym_path.keys
    return len(keys) > 1 and bool(keys[0] == SHARED)


def _owners(place: Derived) -> Iterator[Any]:
    node = place.sym_parent
    while node is not None:
        # A decision is replaced by its value before fields of the value are read.
        if isinstance(node, pg.Object | pg.Dict) and not isinstance(node, pg.hyper.HyperValue):
            yield node
        node = node.sym_parent


def _unknown_key(place: Derived, before: Path, key: str | int, value: Any) -> UserError:
    owner = str(pg.KeyPath(list(before)))
    if isinstance(value, pg.List | tuple):
        has = f'{owner} is a list of {len(value)} items'
    elif isinstance(value, pg.Object | pg.Dict):
        legal = [str(name) for name in value.sym_keys()]
        has = f'{nearest(str(key), legal)} {owner} has: {", ".join(legal) or "nothing"}'
    else:
        has = f'{owner} is {fields.to_literal(value)}'
    full = pg.KeyPath([*before, key])
    return _UnknownNameError(
        f'{place.sym_path}: {place} names {full}, which does not exist. {has.strip()}'
    )


def _has(owner: Any, key: str | int) -> bool:
    if isinstance(owner, pg.List | tuple):
        return isinstance(key, int) and -len(owner) <= key < len(owner)
    return isinstance(owner, pg.Object | pg.Dict) and key in owner.sym_keys()


def _child(owner: Any, key: str | int) -> Any:
    if isinstance(owner, tuple):
        return owner[int(key)]
    if isinstance(owner, pg.List):
        return owner.sym_getattr(key)
    # Inferred: the value of a field may come from an owner, and may be missing yet.
    return owner.sym_inferred(key, pg.MISSING_VALUE)


def _fitted(place: Derived, value: Any, where: str) -> Any:
    owner = place.sym_parent
    spec = None if owner is None else fields.spec_of(owner, place.sym_path.key)
    if isinstance(value, float) and value.is_integer() and fields.wants_integer(spec):
        value = int(value)
    try:
        return fields.fit(spec, pg.clone(value, deep=True), where)
    except UserError as error:
        raise ValueError(str(error)) from error
