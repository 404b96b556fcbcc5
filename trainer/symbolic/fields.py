"""What the type of a field accepts, in words and in fact."""

from collections.abc import Iterator
from typing import Any

import pyglove as pg

from trainer.symbolic import names
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import IntRange

_MOST_NAMES = 8


def fit(spec: Any, value: Any, where: str) -> Any:
    """`value` as a field with this type holds it: an int becomes a float in a float field.

    Args:
        spec: the field's `pg.typing.ValueSpec`; None accepts anything.
        value: a literal, a component, a decision, or a list or dict of them.
        where: the path of the value, for the message.

    Raises:
        UserError: the value does not fit; says where, what was expected and what came.
    """
    if spec is None:
        return value
    for inner_spec, inner, inner_where in _inside(spec, value, where):
        fit(inner_spec, inner, inner_where)
    # PyGlove takes true for the integer 1; to a person who wrote `true`, that is a bug.
    if isinstance(value, bool) and not any(
        isinstance(option, pg.typing.Bool | pg.typing.Any) for option in _options(spec)
    ):
        raise UserError(_mismatch(spec, value, where))
    try:
        return spec.apply(value)
    except (ArithmeticError, TypeError, ValueError, KeyError) as error:
        raise UserError(_mismatch(spec, value, where)) from error


def spec_of(owner: Any, key: str | int) -> Any:
    """The type of what an object, a mapping or a list holds under `key`; None where it has none."""
    if isinstance(owner, pg.List):
        return owner.value_spec and owner.value_spec.element.value
    if isinstance(owner, pg.Object):
        schema = owner.__schema__
    else:
        schema = owner.value_spec and owner.value_spec.schema
    field = schema and schema.get_field(key)
    return field and field.value


def wants_integer(spec: Any) -> bool:
    """Whether a type accepts integers, and no other numbers."""
    options = _options(spec)
    takes = any(isinstance(option, pg.typing.Int) for option in options)
    return takes and not any(isinstance(o, pg.typing.Float | pg.typing.Any) for o in options)


def describe(spec: Any) -> str:
    """What a type accepts, in words.

    Example:
        >>> describe(pg.typing.Int().noneable())
        'an integer or null'
    """
    null = ['null'] if _takes_null(spec) else []
    return ' or '.join([_describe_option(option) for option in _options(spec)] + null)


def shown(value: Any) -> str:
    """A value as one would write it on the command line, components without their fields."""
    if value is None or isinstance(value, bool):
        return {None: 'null', True: 'true', False: 'false'}[value]
    if isinstance(value, IntRange):
        return value.text
    if isinstance(value, pg.Object):
        return f'{type(value).__name__}(…)'
    if isinstance(value, list):
        return f'[{", ".join(map(shown, value))}]'
    return repr(value)


def _mismatch(spec: Any, value: Any, where: str) -> str:
    return f'{where}: expected {describe(spec)}, got {shown(value)}'


def _takes_null(spec: Any) -> bool:
    try:
        spec.apply(None)
    except (TypeError, ValueError):
        return False
    return True


def _options(spec: Any) -> list[Any]:
    return list(spec.candidates) if isinstance(spec, pg.typing.Union) else [spec]


def _inside(spec: Any, value: Any, where: str) -> Iterator[tuple[Any, Any, str]]:
    """The parts of a value, with the types that the whole asks of them: for exact messages."""
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


def _describe_option(spec: Any) -> str:
    if isinstance(spec, pg.typing.Enum):
        return ' or '.join(map(repr, spec.values))
    if isinstance(spec, pg.typing.List):
        return f'a list, each item {describe(spec.element.value)}'
    if isinstance(spec, pg.typing.Object) and issubclass(spec.cls, Component):
        classes = [found.__name__ for found in names.loaded_classes(spec.cls)]
        return ' or '.join(classes[:_MOST_NAMES] + ['…'] * (len(classes) > _MOST_NAMES))
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
