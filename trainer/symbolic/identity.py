"""Objects that must not occur twice in a tree: layers, which own their weights, and decisions.

PyGlove copies an object that gets a second parent. The copies made so carry the identity of their
original, and two objects of one identity in one tree are refused. A `clone()` has none.
"""

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import pyglove as pg

from trainer.symbolic.errors import UserError

OVERRIDES = ('smoke', 'sub_experiments')
"""Fields of an experiment with values for other fields, which replace those later."""


class _Identity:
    """Held by an original and by the copies that PyGlove made of it."""


_Branch: TypeAlias = dict[int, int]
"""Candidates that are chosen, by the id of their choice."""

_identities: weakref.WeakSet[_Identity] = weakref.WeakSet()


def validate_arguments(made: Any, given: Mapping[Any, Any]) -> None:
    """Refuses an object that occurs twice in the tree of `made`.

    Args:
        made: a component that was just constructed or rebound.
        given: the values that were passed, by path.

    Raises:
        UserError: names both paths.
    """
    parts = {
        path: value
        for path, value in given.items()
        if isinstance(value, pg.Object | dict | list | tuple) and made.sym_has(path)
    }
    ids = [id(value) for value in parts.values()]
    for path, value in parts.items():
        if ids.count(id(value)) > 1:
            # PyGlove does not copy an object that is the value of two fields.
            _mark(value, value)
        _mark_copies(value, made.sym_get(path))
    if _identities:
        _validate_tree(made.sym_root)


def _mark_copies(given: Any, placed: Any) -> None:
    if given is placed:
        return
    if isinstance(given, pg.hyper.HyperValue):
        _mark(given, placed)
        return
    if isinstance(given, pg.Object):
        _mark(given, placed)
    elif not isinstance(given, dict | list | tuple):
        return
    if isinstance(placed, pg.Object | pg.Dict | pg.List):
        children = _children(given)
        for key, child in _children(placed).items():
            _mark_copies(children.get(key), child)


def _mark(given: Any, placed: Any) -> None:
    is_unique = getattr(given, 'is_unique', isinstance(given, pg.hyper.HyperPrimitive))
    if type(placed) is type(given) and is_unique:
        identity = getattr(given, '_identity', None) or _Identity()
        given._identity = placed._identity = identity
        _identities.add(identity)


def _children(value: Any) -> dict[Any, Any]:
    if isinstance(value, pg.Object | pg.Dict | pg.List):
        return dict(value.sym_items())
    return value if isinstance(value, dict) else dict(enumerate(value))


def _validate_tree(root: Any) -> None:
    validate_decisions(root)
    first: dict[_Identity, pg.KeyPath] = {}
    for path, found in _unique(root, root.sym_path):
        other = first.setdefault(found._identity, path)
        if other is not path:
            raise UserError(
                f'{other} and {path} are one {type(found).__name__} object, and '
                'each place has weights of its own. To share the weights, let the owner of the '
                'layer pass it to the other place in `forward`, or follow it in a Stack by '
                'SharedWithPrevious(). For equal layers with their own weights pass layer.clone()'
            )


def validate_decisions(value: Any) -> None:
    """Refuses a decision without a name that stands in two places: it reads as one value.

    Candidates of one choice may have the same decision: only one of them is active.

    Args:
        value: an experiment, or a space: mappings, lists and symbolic objects.

    Raises:
        UserError: names both paths.
    """
    seen: dict[Any, list[tuple[pg.KeyPath, _Branch]]] = {}
    for path, found, branch in _decisions(value, getattr(value, 'sym_path', pg.KeyPath()), {}):
        others = seen.setdefault(getattr(found, '_identity', None) or id(found), [])
        for other, there in others:
            if not any(there.get(owner, index) != index for owner, index in branch.items()):
                name = next((key for key in path.keys[::-1] if isinstance(key, str)), 'value')
                kind = 'pg.floatv' if isinstance(found, pg.hyper.Float) else 'pg.oneof'
                raise UserError(
                    f'{other} and {path} are one decision object, but would be two decisions. For '
                    f'one value in both places give it a name: {kind}(…, name={name!r}). For '
                    'two values make a decision for each place, or pass decision.clone()'
                )
        others.append((path, branch))


def _decisions(
    value: Any, path: pg.KeyPath, branch: '_Branch'
) -> Iterator[tuple[pg.KeyPath, Any, '_Branch']]:
    """Yields the decisions without names, with the candidates that must be chosen for each."""
    if isinstance(value, pg.hyper.HyperPrimitive):
        if value.name is None:
            yield path, value, branch
        if isinstance(value, pg.hyper.Choices):
            for index, candidate in enumerate(value.candidates):
                is_one = isinstance(value, pg.hyper.OneOf)
                inside = {**branch, id(value): index} if is_one else branch
                yield from _decisions(candidate, path, inside)
    elif isinstance(value, pg.Object | dict | list):
        is_root = getattr(value, 'sym_parent', None) is None
        for key, child in _children(value).items():
            if not (is_root and key in OVERRIDES):
                yield from _decisions(child, pg.KeyPath(key, path), branch)


def _unique(value: Any, path: pg.KeyPath) -> Iterator[tuple[pg.KeyPath, Any]]:
    """Yields the objects with an identity, except for those in candidates of decisions."""
    if isinstance(value, pg.hyper.HyperValue) or not isinstance(
        value, pg.Object | pg.Dict | pg.List
    ):
        return
    if getattr(value, '_identity', None) is not None:
        yield path, value
    is_root = value.sym_parent is None
    for key, child in value.sym_items():
        if not (is_root and key in OVERRIDES):
            yield from _unique(child, pg.KeyPath(key, path))
