"""Decisions to begin with."""

import json
from pathlib import Path
from typing import Any

import pyglove as pg

from paxtune.labels import label
from paxtune.search_space import Space
from trainer.component import Component
from trainer.errors import UserError


def read(path: str) -> list[dict[str, Any]]:
    """Seed trials from a file: a JSON list of {path: value}, or what `studies export` writes.

    Raises:
        UserError: it cannot be read, or is something else.
    """
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f'--seed_trials={path}: cannot be read: {error}') from error
    if isinstance(content, dict) and isinstance(content.get('trials'), list):
        trials = content['trials']
        content = [each.get('decisions') if isinstance(each, dict) else None for each in trials]
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise UserError(
            f'--seed_trials={path}: expected a JSON list of {{"path": value}}, one for each trial'
        )
    for each in content:
        for name, value in each.items():
            # PyGlove's constructors import what this key names.
            if name == pg.JSONConvertible.TYPE_NAME_KEY:
                raise UserError(f'--seed_trials={path}: {name} is no path of a decision')
            if not isinstance(value, str | int | float | bool | None):
                raise UserError(f'--seed_trials={path}: {name}: expected a plain value: {value!r}')
    return content


def defaults(space: Space, base: Any) -> dict[str, Any]:
    """What stands at the decisions of a space when nobody searches.

    Looked up in the experiment before its decisions were opened (`--tune`), then in the classes
    that it is derived from, then in the component's own defaults.

    Args:
        space: of the experiment.
        base: the experiment before `--tune`.

    Returns:
        {path: value}, of the decisions that have such a value.

    Raises:
        UserError: none has.
    """
    found: dict[str, Any] = {}
    for path in space.paths:
        if '[=' in path:
            continue
        for value in _candidates(pg.KeyPath.parse(path), base):
            if not pg.is_deterministic(value):
                continue
            try:
                space.parse(found | {path: label(value)}, partial=True)
            except UserError:
                continue
            found[path] = label(value)
            break
    if not found:
        raise UserError('--seed_defaults: no decision has a default among its legal values')
    return found


def _candidates(path: Any, base: Any) -> list[Any]:
    roots = [base, *(_Defaults(cls) for cls in type(base).__mro__ if issubclass(cls, Component))]
    found = [root.sym_get(path) for root in roots if root.sym_has(path)]
    owner, key = path.parent, path.key
    if base.sym_has(owner) and isinstance(base.sym_get(owner), pg.Object):
        field = type(base.sym_get(owner)).__schema__.get_field(key)
        if field is not None and field.value.has_default:
            found.append(field.value.default)
    return found


class _Defaults:
    """The defaults of a class's fields, looked into by path."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def sym_has(self, path: Any) -> bool:
        field = self._cls.__schema__.get_field(path.keys[0])  # type: ignore[attr-defined]
        if field is None or not field.value.has_default:
            return False
        rest = pg.KeyPath(path.keys[1:])
        return not rest or (
            isinstance(field.value.default, pg.Symbolic) and field.value.default.sym_has(rest)
        )

    def sym_get(self, path: Any) -> Any:
        default = self._cls.__schema__.get_field(path.keys[0]).value.default  # type: ignore[attr-defined]
        rest = pg.KeyPath(path.keys[1:])
        return default.sym_get(rest) if rest else default
