"""Types of fields: conversion of values, and descriptions for messages."""

from collections.abc import Iterator
from typing import Any, TypeVar

import pyglove as pg

from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import IntRange

Made = TypeVar('Made', bound=pg.Object)

_MAX_NAMES = 8


def loaded_classes(base: type[Made]) -> Iterator[type[Made]]:
    """Yields every registered subclass of `base`, and `base`, in the order of registration."""
    for name, found in pg.JSONConvertible.registered_types():
        is_one = isinstance(found, type) and issubclass(found, base)
        if is_one and name == getattr(found, '__serialization_key__', ''):
            yield found


def fit(spec: Any, value: Any, where: str, null: str = 'null') -> Any:
    """Converts `value` to the type of a field: an int becomes a float in a float field.

    Args:
        spec: the type; None for any.
        value: of a flag, a file or Python.
        where: names the field in messages.
        null: the word for no value in messages, which is 'None' in Python.

    Raises:
        UserError: the value does not fit; the message has the path, the expected type and the
            value.
    """
    if spec is None:
        return value
    for inner_spec, inner, inner_where in _inside(spec, value, where):
        fit(inner_spec, inner, inner_where, null)
    # PyGlove accepts true as the integer 1, which is a mistake of the user.
    if isinstance(value, bool) and not any(
        isinstance(option, pg.typing.Bool | pg.typing.Any) for option in _options(spec)
    ):
        raise UserError(_mismatch(spec, value, where, null))
    try:
        return spec.apply(value)
    except (ArithmeticError, TypeError, ValueError, KeyError) as error:
        raise UserError(_mismatch(spec, value, where, null)) from error


def spec_of(owner: Any, key: str | int) -> Any:
    """The type of `key` in an object, its class, a mapping or a list; None if it has no type."""
    if isinstance(owner, pg.List):
        return owner.value_spec and owner.value_spec.element.value
    schema: Any = getattr(owner, '__schema__', None)
    if schema is None:
        schema = owner.value_spec and owner.value_spec.schema
    field = schema and schema.get_field(key)
    return field and field.value


def wants_integer(spec: Any) -> bool:
    """True if a type accepts integers, but no other numbers."""
    options = _options(spec)
    takes = any(isinstance(option, pg.typing.Int) for option in options)
    return takes and not any(isinstance(o, pg.typing.Float | pg.typing.Any) for o in options)


def describe(spec: Any, null: str = 'null') -> str:
    """Describes the values that a type accepts.

    Example:
        >>> describe(pg.typing.Int().noneable())
        'an integer or null'
    """
    empty = [null] if _takes_null(spec) else []
    return ' or '.join([_describe_option(option, null) for option in _options(spec)] + empty)


def to_literal(value: Any) -> str:
    """Formats a value as on the command line, components without their fields."""
    if value is None or isinstance(value, bool):
        return {None: 'null', True: 'true', False: 'false'}[value]
    if isinstance(value, IntRange):
        return value.text
    if isinstance(value, pg.hyper.Float):
        return f'floatv({value.min_value}, {value.max_value})'
    if isinstance(value, pg.Object):
        return f'{type(value).__name__}(…)'
    if isinstance(value, list):
        return f'[{", ".join(map(to_literal, value))}]'
    return repr(value)


def _mismatch(spec: Any, value: Any, where: str, null: str) -> str:
    got = repr(value) if null == 'None' and isinstance(value, bool | None) else to_literal(value)
    if isinstance(value, type) and issubclass(value, pg.Object):
        got = f'the class {value.__name__}: write {value.__name__}(…)'
    return f'{where}: expected {describe(spec, null)}, got {got}'


def _takes_null(spec: Any) -> bool:
    try:
        spec.apply(None)
    except (TypeError, ValueError):
        return False
    return True


def _options(spec: Any) -> list[Any]:
    return list(spec.candidates) if isinstance(spec, pg.typing.Union) else [spec]


def _inside(spec: Any, value: Any, where: str) -> Iterator[tuple[Any, Any, str]]:
    """Yields the parts of a value, with their types and paths, for exact messages."""
    if isinstance(value, pg.hyper.OneOf):
        for i, candidate in enumerate(value.candidates):
            yield spec, candidate, f'{where}, candidate {i + 1}'
    elif isinstance(spec, pg.typing.List):
        if isinstance(value, pg.hyper.ManyOf):
            for i, candidate in enumerate(value.candidates):
                yield spec.element.value, candidate, f'{where}, candidate {i + 1}'
        elif isinstance(value, list):
            for i, item in enumerate(value):
                yield spec.element.value, item, f'{where}[{i}]'
    elif isinstance(spec, pg.typing.Dict) and spec.schema and isinstance(value, dict):
        for name, item in value.items():
            field = spec.schema.get_field(name)
            if field:
                yield field.value, item, f'{where}.{name}'


def _describe_option(spec: Any, null: str) -> str:
    if isinstance(spec, pg.typing.Enum):
        return ' or '.join(repr(each) for each in spec.values if each is not None)
    if isinstance(spec, pg.typing.List):
        return f'a list, each item {describe(spec.element.value, null)}'
    if isinstance(spec, pg.typing.Object) and issubclass(spec.cls, pg.Object):
        classes = [found.__name__ for found in loaded_classes(spec.cls)]
        return ' or '.join(classes[:_MAX_NAMES] + ['…'] * (len(classes) > _MAX_NAMES))
    for kind, words in _WORDS.items():
        if isinstance(spec, kind):
            return words
    return str(spec)


_WORDS = {
    pg.typing.Bool: 'true or false',
    pg.typing.Int: 'an integer',
    pg.typing.Float: 'a number',
    pg.typing.Str: 'a string',
    pg.typing.Dict: 'a mapping',
    pg.typing.Any: 'any value',
}
