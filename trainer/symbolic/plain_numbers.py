"""Numbers of NumPy and JAX, which may stand wherever a number of Python may.

PyGlove converts a value that is assigned to a typed field: an argument of a component, a bound of
`pg.floatv`, a count of `pg.manyof`. It finds the conversions that this module registers when it is
imported. A value without a type, such as a candidate or a step, passes through `plain`.
"""

import abc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyglove as pg

V = TypeVar('V')

_PLAIN = frozenset((bool, float, int, str, type(None)))


class _Scalar(metaclass=abc.ABCMeta):  # noqa: B024
    """The scalars of NumPy, such as `np.int64(1)`. NumPy itself is not imported for them."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return ('numpy', 'generic') in ((each.__module__, each.__name__) for each in other.__mro__)


class _Array(metaclass=abc.ABCMeta):  # noqa: B024
    """The arrays of NumPy and JAX. One without axes is a number."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return all(hasattr(other, name) for name in ('__array__', 'dtype', 'item', 'shape'))


class _Integer(int):
    """Hides a conversion of arrays from PyGlove's JSON, which knows the plain types only."""


class _Float(float):
    """Hides a conversion of arrays from PyGlove's JSON, as `_Integer`."""


def _has_shape(value: Any) -> bool:
    return isinstance(value, _Scalar | _Array)


def plain(value: Any) -> Any:
    """Converts a number, truth value or text of NumPy or JAX to Python's; returns others as given.

    Example:
        >>> import numpy as np
        >>> plain(np.int64(3)), plain(np.float32(0.5)), plain(np.array(True)), plain('text')
        (3, 0.5, True, 'text')
    """
    if type(value) in _PLAIN or not _has_shape(value) or value.shape != ():
        return value
    kind, name = getattr(value.dtype, 'kind', 'O'), value.dtype.name
    if kind in 'biufU':
        return value.item() if kind in 'bU' else int(value) if kind in 'iu' else float(value)
    # Types of machine learning, such as bfloat16 and int4, have the kind of structures.
    if kind == 'V' and 'int' in name:
        return int(value)
    return float(value) if kind == 'V' and 'float' in name else value


def is_array(value: Any) -> bool:
    """Returns True for an array of NumPy or JAX that has axes.

    Example:
        >>> import numpy as np
        >>> is_array(np.arange(3)), is_array(np.array(3)), is_array([1, 2])
        (True, False, False)
    """
    return _has_shape(value) and value.shape != ()


def leaves(value: Any, path: pg.KeyPath | None = None) -> Iterator[tuple[pg.KeyPath, Any]]:
    """Yields the values that hold no others in a symbolic tree, candidates included, by path."""
    if not isinstance(value, pg.Object | pg.Dict | pg.List):
        yield pg.KeyPath() if path is None else path, value
        return
    for name, child in value.sym_items():
        yield from leaves(child, pg.KeyPath(name, path))


def with_plain_numbers(value: V) -> V:
    """Returns a copy of a symbolic tree with `plain` values; the tree itself if all are."""
    changed = {
        str(path): made
        for path, leaf in leaves(value)
        if type(leaf) not in _PLAIN and (made := plain(leaf)) is not leaf
    }
    if not changed:
        return value
    copy: V = pg.clone(value, deep=True)
    copy.rebind(changed, raise_on_no_change=False)  # type: ignore[attr-defined]
    return copy


def _as(kind: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        found = plain(value)
        if type(found) is not kind and (type(found), kind) != (int, float):
            words = {int: 'an integer', float: 'a number', bool: 'True or False'}[kind]
            raise TypeError(f'expected {words}, not {value!r}')
        return kind(found)

    return convert


# PyGlove takes the last one that fits: bool is an int to it, and its JSON takes any of them.
pg.typing.register_converter(_Array, _Float, _as(float))
pg.typing.register_converter(_Array, _Integer, _as(int))
pg.typing.register_converter(_Scalar, bool, _as(bool))
pg.typing.register_converter(_Scalar, float, _as(float))
pg.typing.register_converter(_Scalar, int, _as(int))
pg.typing.register_converter(_Scalar, type(None), plain)
