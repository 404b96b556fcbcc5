"""Several places, one decision: by its name."""

import keyword
from collections.abc import Iterator
from typing import Any, TypeVar

import pyglove as pg

from trainer.symbolic.derived import SHARED, derived
from trainer.symbolic.errors import UserError

V = TypeVar('V')


def hoisted(value: V) -> V:
    """A copy in which decisions of the same name are one decision; `value` where none are.

    The decision moves to the field `shared`, under its name, and in its places stand derived
    values that read it. There it is always made, also where its places are inside candidates of
    other decisions that a trial does not choose.

    Raises:
        UserError: decisions of one name differ, or there is no room for them in `shared`.

    Example:
        >>> def width():
        ...     return pg.oneof([64, 128], name='width')
        >>> value = hoisted(pg.Dict(encoder=width(), decoder=width()))
        >>> value.decoder, value.shared.width.candidates
        (derived('shared.width'), [64, 128])
    """
    copied = False
    # One at a time: a decision that is hoisted takes along those that are inside it.
    while (repeated := _repeated(value)) is not None:
        if not copied:
            value, copied = pg.clone(value, deep=True), True
            continue
        _hoist(value, *repeated)
    return value


def reference(name: str) -> str:
    """The expression that reads a shared value.

    Example:
        >>> reference('width'), reference('learning rate')
        ('shared.width', "shared['learning rate']")
    """
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f'{SHARED}.{name}' if plain else f'{SHARED}[{name!r}]'


def _repeated(value: Any) -> tuple[str, list[Any]] | None:
    """The first name that several decisions have, and these decisions."""
    by_name: dict[str, list[Any]] = {}
    for decision in _named(value):
        by_name.setdefault(decision.name, []).append(decision)
    for name, decisions in by_name.items():
        if len(decisions) > 1:
            return name, decisions
    return None


def _named(value: Any) -> Iterator[Any]:
    """The decisions that have a name, also those inside others, owners first."""
    if isinstance(value, pg.hyper.HyperPrimitive) and value.name is not None:
        yield value
    if isinstance(value, pg.Object | pg.Dict | pg.List):
        for _, child in value.sym_items():
            yield from _named(child)


def _hoist(root: Any, name: str, decisions: list[Any]) -> None:
    """Makes equal decisions of one name one decision, in place."""
    paths = list(map(readable_path, decisions))
    for path, decision in zip(paths, decisions, strict=True):
        if not pg.eq(decisions[0], decision):
            raise UserError(
                f'{paths[0]} and {path}: both decisions are called {name!r}, and they differ. Make '
                'them equal to have one decision for both, or call them differently.'
            )
    room = _room(root)
    if room is None:
        raise UserError(
            f'{" and ".join(paths)}: decisions of the same name, {name!r}, are one decision, which '
            f'needs a field `{SHARED}`: {type(root).__name__} has none. Use a Tunable, or call '
            'them differently.'
        )
    home = pg.KeyPath([SHARED, name])
    places = [decision.sym_path for decision in decisions if decision.sym_path != home]
    if name not in room:
        room.rebind({pg.KeyPath(name): decisions[0].clone(deep=True)})
    elif not pg.eq(room.sym_getattr(name), decisions[0]):
        raise UserError(
            f'{home}: there is another value of the name of the decision at {paths[0]}, which is '
            'to be shared. Call one of them differently.'
        )
    root.rebind({place: derived(reference(name)) for place in places})


def _room(root: Any) -> Any:
    """The mapping of shared values, made where a root is a mapping itself; None without one."""
    if isinstance(root, pg.Dict) and SHARED not in root:
        root.rebind({SHARED: pg.Dict()})
    if not isinstance(root, pg.Object | pg.Dict) or SHARED not in root.sym_keys():
        return None
    room = root.sym_getattr(SHARED)
    return room if isinstance(room, pg.Dict) else None


def readable_path(node: Any) -> str:
    """Where an object stands, for people: without the candidates that it is part of."""
    keys = []
    while node.sym_parent is not None:
        owner = node.sym_parent
        if isinstance(owner.sym_parent, pg.hyper.Choices):
            node = owner.sym_parent
            continue
        keys.append(node.sym_path.key)
        node = owner
    return str(pg.KeyPath(keys[::-1]))
