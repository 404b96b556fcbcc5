"""Decisions to begin with."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyglove as pg
from absl import logging

from paxtune.search_space.decisions import slots
from paxtune.search_space.labels import display_value
from paxtune.search_space.space import Space
from trainer.runtime.directory import read_json
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError


def read(path: str, space: Space | None = None) -> list[dict[str, Any]]:
    """Reads initial trials: a JSON list of {path: value}, or the output of `studies export`.

    Args:
        path: of the file. The output of `studies portfolio` may be of other spaces.
        space: takes the decisions of a portfolio that it has and allows; None takes all.

    Raises:
        UserError: it cannot be read, or is something else.
    """
    flag = f'--initial_trials={path}'
    content = read_json(path, flag)
    is_portfolio = isinstance(content, dict) and isinstance(content.get('portfolio'), list)
    if is_portfolio:
        content = content['portfolio']
    if isinstance(content, dict) and isinstance(content.get('trials'), list):
        trials = content['trials']
        content = [each.get('decisions') if isinstance(each, dict) else None for each in trials]
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise UserError(f'{flag}: expected a JSON list of {{"path": value}}, one for each trial')
    for each in content:
        for name, value in each.items():
            if not _is_path(name):
                raise UserError(f'{flag}: {name} is not the path of a decision')
            if not isinstance(value, str | int | float | bool | None):
                raise UserError(f'{flag}: {name}: expected a plain value: {value!r}')
    return _of_portfolio(content, space, flag) if is_portfolio and space is not None else content


def _of_portfolio(
    given: Sequence[Mapping[str, Any]], space: Space, flag: str
) -> list[dict[str, Any]]:
    """Takes the decisions that a space has; a line names the others."""
    kept = [fitting(space, each) for each in given]
    taken = [each for i, each in enumerate(kept) if each and each not in kept[:i]]
    if not taken:
        raise UserError(f'{flag}: no decision of this portfolio is in the search space')
    lost = {path for each, its in zip(given, kept, strict=True) for path in each.keys() - its}
    if lost:
        logging.warning('%s: left out, as they do not fit here: %s', flag, ', '.join(sorted(lost)))
    return taken


def fitting(space: Space, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the decisions, {path: value}, that another space has and allows."""
    found: dict[str, Any] = {}
    for path, value in given.items():
        try:
            space.parse(found | {path: value}, partial=True)
        except UserError:
            continue
        found[path] = value
    return found


def _is_path(name: str) -> bool:
    # PyGlove's constructors import the class that this key names.
    if name == pg.JSONConvertible.TYPE_NAME_KEY:
        return False
    try:
        pg.KeyPath.parse(name)
    except ValueError:
        return False
    return True


def defaults(space: Space, base: Any, flag: str) -> dict[str, Any]:
    """Finds the values that the decisions of a space have without a search.

    The experiment has them before its decisions are opened (`--tune`). Else they are the defaults
    of its classes, or of the component.

    Args:
        base: the experiment before `--tune`.
        flag: names the request in messages.

    Returns:
        {path: value} of the decisions that have such a value.

    Raises:
        UserError: none has.
    """
    found: dict[str, Any] = {}
    for path in space.paths:
        if '[=' in path:
            continue
        for value in (
            *_own(pg.KeyPath.parse(path), base),
            *_of_class(pg.KeyPath.parse(path), base),
        ):
            if not pg.is_deterministic(value):
                continue
            try:
                space.parse(found | {path: display_value(value)}, partial=True)
            except UserError:
                continue
            found[path] = display_value(value)
            break
    if not found:
        raise UserError(f'{flag}: no decision has a default among its legal values')
    return found


def own_values(space: Space, base: Any) -> dict[str, tuple[int | float, bool]]:
    """Finds the legal values that decisions have without a search, by the id of the decision.

    Decisions inside candidates have none.

    Args:
        base: as of `defaults`.

    Returns:
        Each value, and whether it is the default of the component that it is a field of.
    """
    found: dict[str, tuple[int | float, bool]] = {}
    for slot in (slot for point in space.spec.elements for slot in slots(point)):
        path = pg.KeyPath.parse(slot.id.path)
        defaults = list(_of_class(path, base))
        for value in _own(path, base):
            if not pg.is_deterministic(value):
                continue
            if (legal := space.legal(slot, display_value(value))) is not None:
                found[slot.id.path] = legal, any(pg.eq(value, each) for each in defaults)
                break
    return found


def _own(path: pg.KeyPath, base: Any) -> Iterator[Any]:
    """Yields the values of an experiment, and of the experiments that it is derived from."""
    if base.sym_has(path):
        yield base.sym_get(path)
    for cls in type(base).__mro__:
        if issubclass(cls, Component):
            yield from _default(cls, path)


def _of_class(path: pg.KeyPath, base: Any) -> Iterator[Any]:
    """Yields the default of the component that a path is a field of."""
    if path and base.sym_has(path.parent):
        yield from _default(type(base.sym_get(path.parent)), pg.KeyPath(path.key))


def _default(cls: type, path: pg.KeyPath) -> Iterator[Any]:
    schema = getattr(cls, '__schema__', None)
    field = None if schema is None else schema.get_field(path.keys[0])
    if field is not None and field.value.has_default:
        default, rest = field.value.default, pg.KeyPath(path.keys[1:])
        if not rest:
            yield default
        elif isinstance(default, pg.Symbolic) and default.sym_has(rest):
            yield default.sym_get(rest)
