"""Names of decisions and candidates for people and JSON, and their inverse."""

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import pyglove as pg

from trainer.symbolic.derived import Derived
from trainer.symbolic.plain_numbers import plain

_CONDITIONS = re.compile(r'(\[=\d+/\d+\])+(?=\.|\[\d)')


def parameter_path(id_: str) -> str:
    """Path of a decision in the concrete experiment.

    Conditions are omitted, except where a decision has the same path as its parent.

    Example:
        >>> parameter_path('layers[0].kind[=1/3].heads')
        'layers[0].kind.heads'
        >>> parameter_path('layers[0].kind[=1/3]')
        'layers[0].kind[=1/3]'
    """
    return _CONDITIONS.sub('', id_)


def display_value(value: Any, with_derived: bool = True) -> Any:
    """Candidate for people and JSON: a plain value unchanged, any other as its display name."""
    value = plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return display_name(value, with_derived)


def display_name(value: Any, with_derived: bool = True, with_open: bool = False) -> str:
    """One-line text of a value, without defaults.

    The expressions of derived values are omitted unless `with_derived`, and the names of open
    decisions unless `with_open`.

    Example:
        >>> branch = pg.Dict(widths=[1, 2], depth=pg.oneof([3, 4]))
        >>> display_name(branch), display_name(branch, with_open=True)
        ('{widths=[1, 2]}', '{widths=[1, 2], depth}')
    """
    named = functools.partial(display_name, with_derived=with_derived, with_open=with_open)
    if isinstance(value, Derived):
        return str(value.expression)
    if isinstance(value, pg.Object | pg.Dict):
        items = ', '.join(
            name if isinstance(child, pg.hyper.HyperValue) else f'{name}={named(child)}'
            for name, child in explicit_fields(value, with_derived, with_open)
        )
        if isinstance(value, pg.Dict):
            return f'{{{items}}}'
        name = type(value).__name__
        return f'{name}({items})' if items else name
    if isinstance(value, list | tuple):
        return f'[{", ".join(map(named, value))}]'
    return repr(plain(value))


def explicit_fields(
    value: pg.Object | pg.Dict, with_derived: bool = True, with_open: bool = False
) -> list[tuple[str, Any]]:
    """Fields of a value that are neither default nor open decisions, as in `display_name`."""
    hidden = (*(() if with_open else [pg.hyper.HyperValue]), *(() if with_derived else [Derived]))
    found = []
    for name, child in value.sym_items():
        field = value.__schema__.get_field(name) if isinstance(value, pg.Object) else None
        default = field is not None and pg.eq(field.default_value, child)
        if not default and not isinstance(child, hidden):
            found.append((name, child))
    return found


def candidate_names(candidates: Sequence[Any]) -> list[Any]:
    """Distinct names of candidates.

    Dictionaries that differ in one constant have it as their name. Derived values are omitted if
    the names are distinct without them. Equal names have the names of their open decisions, too. If
    they are still equal, they are numbered.

    Example:
        >>> depth, rate = pg.oneof([1, 2]), pg.floatv(0.0, 1.0)
        >>> candidate_names([64, 'gelu', pg.Dict(depth=depth), pg.Dict(rate=rate)])
        [64, 'gelu', '{depth}', '{rate}']
        >>> candidate_names([None, pg.Dict(), pg.Dict()])
        [None, '{} #1', '{} #2']
        >>> candidate_names([pg.Dict(kind='adam', beta=rate), pg.Dict(kind='sgd')])
        ['adam', 'sgd']
    """
    if (constants := _constants(candidates)) is not None:
        return constants
    plain = [display_value(candidate, with_derived=False) for candidate in candidates]
    if len({(type(each), each) for each in plain}) < len(plain):
        plain = [display_value(candidate) for candidate in candidates]
    plain = [
        display_name(candidate, with_open=True)
        if isinstance(candidate, pg.Symbolic) and (plain.count(each) > 1 or '{}' in each)
        else each
        for each, candidate in zip(plain, candidates, strict=True)
    ]
    keys = [(type(each), each) for each in plain]
    return [
        each if keys.count(key) == 1 else f'{each} #{index}'
        for index, (key, each) in enumerate(zip(keys, plain, strict=True))
    ]


def _constants(candidates: Sequence[Any]) -> list[Any] | None:
    """Returns the constant of each dictionary; None unless all differ in that field alone."""
    if len(candidates) < 2 or not all(isinstance(each, pg.Dict) for each in candidates):
        return None
    fields = [explicit_fields(each) for each in candidates]
    if not all(len(own) == 1 for own in fields) or len({own[0][0] for own in fields}) > 1:
        return None
    values = [own[0][1] for own in fields]
    names = [display_value(value) for value in values]
    is_plain = not any(isinstance(value, pg.Symbolic) for value in values)
    return names if is_plain and len(set(map(str, names))) == len(names) else None


def match_candidate(value: Any, candidates: Sequence[Any]) -> int | None:
    """Index of the candidate that a user means; None if there is no match.

    The value is plain, a component, or the text of either. Candidates are named as by
    `candidate_names`.

    Example:
        >>> (
        ...     match_candidate('64', [32, 64]),
        ...     match_candidate(1, [True, 1]),
        ...     match_candidate('Relu()', ['Gelu', 'Relu']),
        ... )
        (1, 1, 1)
    """
    value = display_value(value)
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
    """Returns True for equal texts of lists or components, spaces aside."""
    texts = isinstance(value, str) and isinstance(candidate, str)
    return texts and ''.join(value.split()) == ''.join(candidate.split())
