"""Completion of `--set PATH=VALUE` and `--tune PATH=DECISION`."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyglove as pg

from trainer.symbolic import fields, literals
from trainer.symbolic.derived import Derived

_LONGEST = 60
"""Characters of a value: longer ones are not readable in a list."""


def settable(experiment: pg.Object) -> dict[str, list[str]]:
    """Maps the path of each field without fields below it to the values that can be listed.

    Values are choices of a decision, names, true and false. Numbers have none.
    """
    found: dict[str, list[str]] = {}

    def visit(owner: Any) -> None:
        for key, value in owner.sym_items():
            if owner is experiment and key == 'smoke':
                continue  # Values for --smoke alone.
            is_inner = isinstance(value, pg.Object | pg.Dict | pg.List) and len(list(_keys(value)))
            if is_inner:
                visit(value)
            else:
                found[str(pg.KeyPath(key, owner.sym_path))] = _values(owner, key, value)

    visit(experiment)
    return found


def _keys(value: Any) -> Iterable[Any]:
    # Decisions and derived values are set as a whole.
    is_indivisible = isinstance(value, pg.hyper.HyperPrimitive | Derived)
    return () if is_indivisible else value.sym_keys()


def _values(owner: Any, key: str | int, value: Any) -> list[str]:
    spec = fields.spec_of(owner, key)
    found: list[Any] = []
    if isinstance(value, pg.hyper.OneOf):
        found = list(value.candidates)
    elif isinstance(spec, pg.typing.Bool):
        found = [True, False]
    elif isinstance(spec, pg.typing.Enum):
        found = list(spec.values)
    return [each for each in map(_literal, found) if len(each) <= _LONGEST and '…' not in each]


def _literal(value: Any) -> str:
    """Renders a value as one would type it: a word without quotes."""
    is_word = isinstance(value, str) and value.isidentifier()
    return value if is_word and literals.parse(value, '') == value else fields.to_literal(value)


def completed(paths: Mapping[str, list[str]], prefix: str) -> list[str]:
    """Completes a path by one level, or a value.

    A path that has one continuation is continued further, so that each answer is a choice.

    Args:
        paths: as of `settable`.
        prefix: the beginning of a path, or a path with the beginning of a value.

    Returns:
        Paths that end in `.` or `[` where fields lie below, and in `=` otherwise; or `path=value`.

    Example:
        >>> paths = {'task.model.dims': [], 'task.model.heads': ['2', '4'], 'seed': []}
        >>> completed(paths, '')
        ['task.', 'seed=']
        >>> completed(paths, 'ta')
        ['task.model.dims=', 'task.model.heads=']
        >>> completed(paths, 'task.model.heads=')
        ['task.model.heads=2', 'task.model.heads=4']
    """
    path, equals, _ = prefix.partition('=')
    if equals:
        return [f'{path}={value}' for value in paths.get(path, ())]
    begun = [each for each in paths if each.startswith(prefix)]
    found = _levels(begun, len(prefix))
    while len(found) == 1 and found[0][-1] in '.[':
        found = _levels(begun, len(found[0]))
    return found


def _levels(paths: Iterable[str], start: int) -> list[str]:
    """The paths up to the next level after `start`, each once."""
    ends = ((path, _next_level(path, start)) for path in paths)
    return [*dict.fromkeys(path[:end] if end else f'{path}=' for path, end in ends)]


def _next_level(path: str, start: int) -> int:
    """The place after the next `.` or `[`; 0 without any."""
    places = [place for mark in '.[' if (place := path.find(mark, start)) >= 0]
    return min(places, default=-1) + 1
