"""What differs between two symbolic values."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyglove as pg

from paxtune.search_space.labels import short


class Difference(NamedTuple):
    """A place in which two values differ.

    Attributes:
        path: where it is.
        left: what stands there in the one; `pg.Diff.MISSING` for nothing.
        right: what stands there in the other.
    """

    path: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f'{self.path}: {shown(self.left)} → {shown(self.right)}'


def differences(left: Any, right: Any) -> list[Difference]:
    """All places in which two values differ, in the order of the values' fields.

    Example:
        >>> a, b = pg.Dict(x=1, layers=[pg.Dict(n=1), 2]), pg.Dict(x=1, layers=[pg.Dict(n=3)])
        >>> print(*differences(a, b), sep='; ')
        layers[0].n: 1 → 3; layers[1]: 2 → (nothing)
    """
    return [] if pg.eq(left, right) else list(_leaves(pg.diff(left, right), pg.KeyPath()))


def shown(value: Any) -> str:
    """One side of a difference, for people."""
    return '(nothing)' if value == pg.Diff.MISSING else short(value)


def _leaves(diff: pg.Diff, path: pg.KeyPath) -> Iterator[Difference]:
    # `pg.diff(…, flatten=True)` would do, but raises where objects in a list differ.
    if diff.is_leaf:
        yield Difference(str(path), diff.left, diff.right)
        return
    for name, child in diff.children.items():
        key = int(name) if diff.left is pg.List else name
        yield from _leaves(child, pg.KeyPath(key, path))
