"""Serialization of experiments as JSON text, whose parser runs no code from the text.

PyGlove's parser unpickles opaque objects, imports the modules of a `type` or a `function`, and
builds functions from marshalled code. This module checks the parsed JSON first: it may name only
component classes and decisions.
"""

import json
from typing import Any, TypeVar

import pyglove as pg

from trainer.symbolic import names
from trainer.symbolic.component import Component
from trainer.symbolic.derived import Derived
from trainer.symbolic.errors import UserError, in_short
from trainer.symbolic.plain_numbers import with_plain_numbers
from trainer.symbolic.ranges import IntRange

S = TypeVar('S')

_DECISIONS = {'hyper.OneOf', 'hyper.ManyOf', 'hyper.Float', IntRange.__serialization_key__}
_INHERITED = {'pyglove.core.symbolic.inferred.ValueFromParentChain'}
_DERIVED = {Derived.__serialization_key__}
_KINDS = {'function': 'a function', 'type': 'a class', '_OpaqueObject': 'an object without JSON'}
_TYPE = pg.JSONConvertible.TYPE_NAME_KEY
_TUPLE = pg.JSONConvertible.TUPLE_MARKER


def to_json_text(value: Any) -> str:
    """Serializes a component, or a `pg.Dict` of components, for `from_json_text`.

    Raises:
        UserError: it contains a value that cannot be deserialized, such as a function or a tuple.
    """
    text: str = with_plain_numbers(value).to_json_str(json_indent=2)
    source = 'space' if isinstance(value, pg.Dict) else f'this {type(value).__name__}'
    _check_types(json.loads(text), '', source, value)
    return text


def from_json_text(text: str, expected: type[S] = Component, source: str = 'the JSON text') -> S:
    """Deserializes a result of `to_json_text`.

    Args:
        text: JSON.
        expected: the class of the result, or a base class.
        source: source of the text, such as the path of the file, for messages.

    Raises:
        UserError: the text is not JSON, names an unknown component, or its values do not fit. No
            code that it names has run.

    Example:
        >>> class Point(Component):
        ...     x: int
        >>> from_json_text(to_json_text(Point(3)), Point)
        Point(x=3)
    """
    try:
        _check_types(json.loads(text), '', source)
    except RecursionError as error:
        raise UserError(f'{source}: {error}') from error
    except ValueError as error:  # Also of a number with more digits than Python reads.
        raise UserError(f'{source}: not JSON: {error}') from error
    try:
        # Parses the text again: PyGlove modifies the dict that it reads.
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


def _check_types(tree: Any, path: str, source: str, written: Any = None) -> None:
    if isinstance(tree, dict):
        if _TYPE in tree:
            _check_type(tree[_TYPE], path, source, written)
        for name, child in tree.items():
            if name != _TYPE:
                _check_types(child, f'{path}.{name}' if path else name, source, written)
    elif isinstance(tree, list):
        if tree and tree[0] == _TUPLE:
            raise UserError(f'{source}: {path or "top level"} is a tuple: use a list')
        for i, child in enumerate(tree):
            _check_types(child, f'{path}[{i}]', source, written)


def is_known(name: str) -> bool:
    """Returns True if JSON may name a class: a decision, or a component that was imported."""
    return name in _DECISIONS | _INHERITED | _DERIVED or names.class_in_file(name) is not None


def _check_type(name: Any, path: str, source: str, written: Any) -> None:
    if isinstance(name, str) and is_known(name):
        return
    if written is not None and (kind := _KINDS.get(str(name).rpartition('.')[2])):
        own = _name_of(written, path)
        raise UserError(
            f'{source}: {path} is {kind} ({own}), which a study cannot keep. Use a text in its '
            f'place, such as {own!r}, and look it up in your code'
        )
    raise UserError(
        f'{source}: {path or "top level"} names {name!r}, which is not a known component. A custom '
        'class must derive from trainer.Component, and its module must be imported'
        + ('.' if written is not None else ': pass --exp=… with the experiment that uses it.')
    )


def _name_of(written: Any, path: str) -> str:
    """The name of a function or a class at a path, or of the class of an object there."""
    try:
        found = pg.KeyPath.parse(path).query(written)
    except KeyError:  # A name with a dot.
        return 'name'
    return str(getattr(found, '__name__', None) or type(found).__name__)
