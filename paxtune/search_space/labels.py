"""Names of decisions and of their candidates: for people, for JSON, and back."""

import math
import re
from collections.abc import Sequence
from typing import Any

import pyglove as pg

from trainer.symbolic.derived import Derived

_CONDITIONS = re.compile(r'(\[=\d+/\d+\])+(?=\.|\[\d)')


def path(id_: str) -> str:
    """Where a decision stands in the concrete experiment.

    The conditions are left out, except where a decision stands at the very place of the choice
    that opens it.

    Example:
        >>> path('layers[0].kind[=1/3].heads')
        'layers[0].kind.heads'
        >>> path('layers[0].kind[=1/3]')
        'layers[0].kind[=1/3]'
    """
    return _CONDITIONS.sub('', id_)


def label(value: Any, with_derived: bool = True) -> Any:
    """A candidate for people and for JSON: a plain value as it is, all else in its short form."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return short(value, with_derived)


def short(value: Any, with_derived: bool = True) -> str:
    """A value on one line, without what is default or still to be decided.

    Args:
        value: a symbolic or plain value.
        with_derived: show the expressions of derived values in it.

    Example:
        >>> short(pg.Dict(widths=[1, 2], depth=pg.oneof([3, 4])))
        '{widths=[1, 2]}'
    """
    if isinstance(value, Derived):
        return str(value.expression)
    if isinstance(value, pg.Object | pg.Dict):
        items = ', '.join(
            f'{name}={short(child, with_derived)}' for name, child in given(value, with_derived)
        )
        if isinstance(value, pg.Dict):
            return f'{{{items}}}'
        name = type(value).__name__
        return f'{name}({items})' if items else name
    if isinstance(value, list | tuple):
        return f'[{", ".join(short(child, with_derived) for child in value)}]'
    return repr(value)


def given(value: pg.Object | pg.Dict, with_derived: bool = True) -> list[tuple[str, Any]]:
    """The fields of a value that are neither default nor still to be decided, as in `short`."""
    given = []
    for name, child in value.sym_items():
        field = value.__schema__.get_field(name) if isinstance(value, pg.Object) else None
        default = field is not None and pg.eq(field.default_value, child)
        hidden = pg.hyper.HyperValue if with_derived else pg.hyper.HyperValue | Derived
        if not default and not isinstance(child, hidden):
            given.append((name, child))
    return given


def labels(candidates: Sequence[Any]) -> list[Any]:
    """A label for each candidate, all different: equal ones are numbered.

    Derived values are left out where the labels differ without them.

    Example:
        >>> labels([64, 'gelu', None, pg.Dict(), pg.Dict()])
        [64, 'gelu', None, '{} #3', '{} #4']
    """
    plain = [label(candidate, with_derived=False) for candidate in candidates]
    if len({(type(each), each) for each in plain}) < len(plain):
        plain = [label(candidate) for candidate in candidates]
    keys = [(type(each), each) for each in plain]
    return [
        each if keys.count(key) == 1 else f'{each} #{index}'
        for index, (key, each) in enumerate(zip(keys, plain, strict=True))
    ]


def match(value: Any, candidates: Sequence[Any]) -> int | None:
    """The index of the candidate that a person means.

    Args:
        value: a plain value, a component, or the text of either.
        candidates: labels, as `labels` makes them.

    Returns:
        The index of the closest match, or None.

    Example:
        >>> match('64', [32, 64]), match(1, [True, 1]), match('Relu()', ['Gelu', 'Relu'])
        (1, 1, 1)
    """
    value = label(value)
    for same in (_identical, _equal_numbers, _same_text, _same_letters):
        for index, candidate in enumerate(candidates):
            if same(value, candidate):
                return index
    return None


def _identical(value: Any, candidate: Any) -> bool:
    return type(value) is type(candidate) and value == candidate


def _equal_numbers(value: Any, candidate: Any) -> bool:
    numbers = type(value) in (int, float) and type(candidate) in (int, float)
    return numbers and bool(value == candidate)


def _same_text(value: Any, candidate: Any) -> bool:
    return isinstance(value, str) and value.removesuffix('()') == str(candidate)


def _same_letters(value: Any, candidate: Any) -> bool:
    """Whether a text is that of a list or a component, but for spaces."""
    texts = isinstance(value, str) and isinstance(candidate, str)
    return texts and ''.join(value.split()) == ''.join(candidate.split())
