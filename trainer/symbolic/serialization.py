"""Experiments as JSON text, read back without running anything that the text says.

PyGlove's own reader unpickles opaque objects, imports what a `type` or a `function` names, and
builds functions from marshalled code. Here the parsed JSON is walked first: all that it may name
are component classes and decisions.
"""

import json
from typing import Any, TypeVar

import pyglove as pg

from trainer.symbolic import names
from trainer.symbolic.component import Component
from trainer.symbolic.derived import Derived
from trainer.symbolic.errors import UserError, in_short
from trainer.symbolic.ranges import IntRange

S = TypeVar('S')

_DECISIONS = {'hyper.OneOf', 'hyper.ManyOf', 'hyper.Float', IntRange.__serialization_key__}
_INHERITED = {'pyglove.core.symbolic.inferred.ValueFromParentChain'}
_DERIVED = {Derived.__serialization_key__}
_TYPE = pg.JSONConvertible.TYPE_NAME_KEY
_TUPLE = pg.JSONConvertible.TUPLE_MARKER


def to_json_text(value: Any) -> str:
    """A component, or a `pg.Dict` of them, as JSON that `from_json_text` reads back.

    Raises:
        UserError: it holds something that would not come back, such as a function or a tuple.
    """
    text: str = value.to_json_str(json_indent=2)
    _refuse_foreign(json.loads(text), '', f'this {type(value).__name__}')
    return text


def from_json_text(
    text: str,
    expected: type[S] = Component,
    source: str = 'the JSON text',
) -> S:
    """The component that `to_json_text` wrote.

    Args:
        text: JSON.
        expected: the class, or a base class, of what must come out.
        source: where the text is from, such as the path of the file, for messages.

    Raises:
        UserError: it is no JSON, names something that is no known component, or its values do not
            fit. Nothing that it names has been run.

    Example:
        >>> class Point(Component):
        ...     x: int
        >>> from_json_text(to_json_text(Point(3)), Point)
        Point(x=3)
    """
    try:
        _refuse_foreign(json.loads(text), '', source)
    except RecursionError as error:
        raise UserError(f'{source}: {error}') from error
    except ValueError as error:  # Also of a number with more digits than Python reads.
        raise UserError(f'{source}: not JSON: {error}') from error
    try:
        # From the text again: PyGlove's reader consumes the dict that it is given.
        component = pg.from_json_str(text, auto_import=False)
    except (
        ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError,
        UserError, ValueError,
    ) as error:  # fmt: skip
        raise UserError(f'{source}: {in_short(error)}') from error
    if not isinstance(component, expected):
        raise UserError(
            f'{source}: expected a {expected.__name__}, found a {type(component).__name__}'
        )
    return component


def _refuse_foreign(tree: Any, path: str, source: str) -> None:
    if isinstance(tree, dict):
        if _TYPE in tree:
            _refuse_foreign_type(tree[_TYPE], path, source)
        for name, child in tree.items():
            if name != _TYPE:
                _refuse_foreign(child, f'{path}.{name}' if path else name, source)
    elif isinstance(tree, list):
        if tree and tree[0] == _TUPLE:
            raise UserError(f'{source}: {path or "top level"} is a tuple: use a list')
        for i, child in enumerate(tree):
            _refuse_foreign(child, f'{path}[{i}]', source)


def _refuse_foreign_type(name: Any, path: str, source: str) -> None:
    if isinstance(name, str) and (
        name in _DECISIONS | _INHERITED | _DERIVED or names.class_in_file(name) is not None
    ):
        return
    raise UserError(
        f'{source}: {path or "top level"} names {name!r}, which is no known component. A class of '
        'yours must derive from trainer.Component, and its module must be imported: commands '
        'take --exp=… with the experiment that uses it.'
    )
