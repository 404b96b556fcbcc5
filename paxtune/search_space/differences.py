"""Differences between two symbolic values."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyglove as pg

from paxtune.search_space.labels import display_name


class Difference(NamedTuple):
    """Path at which two values differ.

    Attributes:
        path: the path.
        left: value in the first one; `pg.Diff.MISSING` if it has none.
        right: value in the second one.
    """

    path: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f'{self.path}: {rendered(self.left)} → {rendered(self.right)}'


def differences(left: Any, right: Any) -> list[Difference]:
    """All differences of two values, in the order of their fields.

    Example:
        >>> a, b = pg.Dict(x=1, layers=[pg.Dict(n=1), 2]), pg.Dict(x=1, layers=[pg.Dict(n=3)])
        >>> print(*differences(a, b), sep='; ')
        layers[0].n: 1 → 3; layers[1]: 2 → (nothing)
    """
    return [] if pg.eq(left, right) else list(_leaves(pg.diff(left, right), pg.KeyPath()))


def rendered(value: Any) -> str:
    """Text of one side of a difference."""
    return '(nothing)' if value == pg.Diff.MISSING else display_name(value)


def _leaves(diff: pg.Diff, path: pg.KeyPath) -> Iterator[Difference]:
    # `pg.diff(…, flatten=True)` raises where objects in a list differ.
    if diff.is_leaf:
        yield Difference(str(path), diff.left, diff.right)
        return
    for name, child in diff.children.items():
        key = int(name) if diff.left is pg.List else name
        yield from _leaves(child, pg.KeyPath(key, path))
