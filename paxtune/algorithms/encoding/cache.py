import functools
from collections.abc import Callable
from typing import Any, TypeVar

import pyglove as pg

_Value = TypeVar('_Value')

_MAX_SPECS = 8  # A process has few studies.


def per_spec(make: Callable[..., _Value]) -> Callable[..., _Value]:
    """Caches `make(spec, …)` for the last few specs, compared by identity.

    Comparing or hashing specs would take as long as most of these computations.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([1, 2])))
        >>> made = per_spec(lambda spec: object())
        >>> made(spec) is made(spec), made(spec) is made(spec.clone())
        (True, False)
    """
    cached: dict[Any, tuple[pg.DNASpec, _Value]] = {}

    @functools.wraps(make)
    def get(spec: pg.DNASpec, *rest: Any) -> _Value:
        key = (id(spec), *rest)
        entry = cached.get(key)
        if entry is None:
            entry = (spec, make(spec, *rest))
            if len(cached) >= _MAX_SPECS:
                cached.clear()
            cached[key] = entry  # A live spec keeps its id.
        return entry[1]

    return get
