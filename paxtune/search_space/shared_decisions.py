"""Decisions that several paths share by name."""

import keyword
from collections.abc import Iterator
from typing import Any, TypeVar

import pyglove as pg

from trainer.symbolic.derived import SHARED, derived
from trainer.symbolic.errors import UserError

V = TypeVar('V')


def with_shared_scope(value: V) -> V:
    """Merges decisions of one name in a copy; returns `value` itself if no name repeats.

    The decision moves to the field `shared`, under its name. Derived values replace it at the
    original paths. A shared decision is always active, even if all of its paths are inside
    candidates that a trial does not choose.

    Raises:
        UserError: decisions of one name differ, or there is no field `shared`.

    Example:
        >>> def width():
        ...     return pg.oneof([64, 128], name='width')
        >>> value = with_shared_scope(pg.Dict(encoder=width(), decoder=width()))
        >>> value.decoder, value.shared.width.candidates
        (derived('shared.width'), [64, 128])
    """
    if _repeated(value) is None:
        return value
    value = pg.clone(value, deep=True)
    # One at a time: a decision moves with all decisions inside it.
    while (repeated := _repeated(value)) is not None:
        _share(value, *repeated)
    return value


def reference(name: str) -> str:
    """Expression that reads a shared value.

    Example:
        >>> reference('width'), reference('learning rate')
        ('shared.width', "shared['learning rate']")
    """
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f'{SHARED}.{name}' if plain else f'{SHARED}[{name!r}]'


def _repeated(value: Any) -> tuple[str, list[Any]] | None:
    """First name that several decisions have, and these decisions."""
    by_name: dict[str, list[Any]] = {}
    for decision in _named(value):
        by_name.setdefault(decision.name, []).append(decision)
    return next((each for each in by_name.items() if len(each[1]) > 1), None)


def _named(value: Any) -> Iterator[Any]:
    """Named decisions, those inside others included, parents before their children."""
    if isinstance(value, pg.hyper.HyperPrimitive) and value.name is not None:
        yield value
    if isinstance(value, pg.Object | pg.Dict | pg.List):
        for _, child in value.sym_items():
            yield from _named(child)


def _share(root: Any, name: str, decisions: list[Any]) -> None:
    paths = list(map(readable_path, decisions))
    for path, decision in zip(paths, decisions, strict=True):
        if not pg.eq(decisions[0], decision):
            raise UserError(
                f'{paths[0]} and {path}: both decisions have the name {name!r}, and they differ. '
                'Make them equal, or rename one of them.'
            )
    scope = _shared_scope(root)
    if scope is None:
        raise UserError(
            f'{" and ".join(paths)}: decisions of the same name, {name!r}, are shared in a field '
            f'`{SHARED}`, which {type(root).__name__} lacks. Rename one of them.'
        )
    home = pg.KeyPath([SHARED, name])
    others = [decision.sym_path for decision in decisions if decision.sym_path != home]
    if name not in scope:
        scope.rebind({pg.KeyPath(name): decisions[0].clone(deep=True)})
    elif not pg.eq(scope.sym_getattr(name), decisions[0]):
        raise UserError(
            f'{home}: another value has the name of the shared decision at {paths[0]}. Rename one '
            'of them.'
        )
    root.rebind({other: derived(reference(name)) for other in others})


def _shared_scope(root: Any) -> Any:
    """Mapping of shared values, created if the root is a mapping; None if there is none."""
    if isinstance(root, pg.Dict) and SHARED not in root:
        root.rebind({SHARED: pg.Dict()})
    if not isinstance(root, pg.Object | pg.Dict) or SHARED not in root.sym_keys():
        return None
    scope = root.sym_getattr(SHARED)
    return scope if isinstance(scope, pg.Dict) else None


def readable_path(node: Any) -> str:
    """Path of an object for people, without the candidates on the way."""
    keys = []
    while node.sym_parent is not None:
        owner = node.sym_parent
        if isinstance(owner.sym_parent, pg.hyper.Choices):
            node = owner.sym_parent
            continue
        keys.append(node.sym_path.key)
        node = owner
    return str(pg.KeyPath(keys[::-1]))
