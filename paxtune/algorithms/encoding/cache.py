"""What is made of a search space once, though every suggestion asks for it."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import pyglove as pg

_Made = TypeVar('_Made')

_MOST = 8  # A process has one study, or a few.


def per_spec(make: Callable[..., _Made]) -> Callable[..., _Made]:
    """Keeps what `make(spec, …)` returned for the last few specs, told apart by identity.

    To compare specs, or to hash them, would take as long as most of what is made of them.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([1, 2])))
        >>> made = per_spec(lambda spec: object())
        >>> made(spec) is made(spec), made(spec) is made(spec.clone())
        (True, False)
    """
    kept: dict[Any, tuple[pg.DNASpec, _Made]] = {}

    @functools.wraps(make)
    def get(spec: pg.DNASpec, *rest: Any) -> _Made:
        key = (id(spec), *rest)
        found = kept.get(key)
        if found is None:
            found = (spec, make(spec, *rest))
            if len(kept) >= _MOST:
                kept.clear()
            kept[key] = found  # With the spec: as long as it is kept, nothing else has its id.
        return found[1]

    return get
