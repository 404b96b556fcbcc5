"""A finite space as a list that is not held: how long it is, and what stands at each index.

The order is that of `decisions.enumerate_decisions`: the last decision changes fastest.
"""

import functools
import math
from collections.abc import Sequence
from typing import Protocol

import pyglove as pg

from paxtune.algorithms.encoding.cache import per_spec
from paxtune.algorithms.encoding.scaling import from_share
from paxtune.search_space.decisions import Decisions, is_integer, places


class Ways(Protocol):
    """All that a space allows.

    Attributes:
        size: how much that is.
    """

    size: int

    def at(self, index: int) -> Decisions:
        """What stands at an index below the size."""


@per_spec
def ways(spec: pg.DNASpec, points_per_range: int | None = None) -> Ways:
    """All that a space allows, with ranges cut into some values.

    Args:
        spec: the space.
        points_per_range: how many values of a range, evenly on its scale, both ends among them.
            Integer ranges that hold no more are whole. None where all ranges are whole.

    Raises:
        ValueError: a range of floats cannot be whole.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.manyof(2, 'abc'), rate=pg.floatv(1e-4, 1.0, 'log')))
        >>> found = ways(spec, 3)
        >>> found.size
        18
        >>> found.at(7)
        {'x[0]': 1, 'x[1]': 0, 'rate': 0.01}
    """
    return _ways(spec, points_per_range)


def _ways(spec: pg.DNASpec, points_per_range: int | None) -> Ways:
    if isinstance(spec, pg.geno.Space):
        return _All([_ways(element, points_per_range) for element in spec.elements])
    if isinstance(spec, pg.geno.Float):
        return _Range(spec, points_per_range)
    return _Choice(spec, points_per_range)


class _All:
    """Several decisions that do not depend on each other."""

    def __init__(self, parts: Sequence[Ways]) -> None:
        self._parts = parts
        self.size = math.prod(part.size for part in parts)

    def at(self, index: int) -> Decisions:
        inside = []
        for part in reversed(self._parts):
            index, digit = divmod(index, part.size)
            inside.append(digit)
        found: Decisions = {}
        for part, digit in zip(self._parts, reversed(inside), strict=True):
            found |= part.at(digit)
        return found


class _Range:
    def __init__(self, point: pg.geno.Float, points_per_range: int | None) -> None:
        self._id = point.id.path
        self._values = _values(point, points_per_range)
        self.size = len(self._values)

    def at(self, index: int) -> Decisions:
        return {self._id: self._values[index]}


def _values(point: pg.geno.Float, count: int | None) -> Sequence[int | float]:
    if is_integer(point):
        whole = range(int(point.min_value), int(point.max_value) + 1)
        if count is None or len(whole) <= count:
            return whole
    if count is None:
        raise ValueError(f'{point.id.path}: a range of floats has countless values')
    shares = [i / (count - 1) for i in range(count)] if count > 1 else [0.5]
    return sorted({_readable(point, from_share(point, share)) for share in shares})


def _readable(point: pg.geno.Float, number: int | float) -> int | float:
    """0.01 where the logarithms made 0.010000000000000004."""
    if isinstance(number, int):
        return number
    return min(max(float(f'{number:.12g}'), float(point.min_value)), float(point.max_value))


class _Choice:
    def __init__(self, point: pg.geno.Choices, points_per_range: int | None) -> None:
        self._distinct, self._sorted = point.distinct, point.sorted
        self._ids = [place.id.path for place in places(point)]
        self._opened = [
            [_ways(candidate, points_per_range) for candidate in place.candidates]
            for place in places(point)
        ]
        self._sizes = tuple(each.size for each in self._opened[0])
        self.size = self._count(range(len(self._sizes)), len(self._ids))

    def at(self, index: int) -> Decisions:
        found: Decisions = {}
        free: Sequence[int] = range(len(self._sizes))
        for place, id_ in enumerate(self._ids):
            left = len(self._ids) - place - 1
            for chosen in free:
                free_then = self._free_then(free, chosen)
                then = self._count(free_then, left)
                if index < self._sizes[chosen] * then:
                    break
                index -= self._sizes[chosen] * then
            inside, index = divmod(index, then)
            found[id_] = chosen
            found |= self._opened[place][chosen].at(inside)
            free = free_then
        return found

    def _free_then(self, free: Sequence[int], chosen: int) -> Sequence[int]:
        """What is free in the next place after one candidate was chosen."""
        if self._sorted:
            return range(chosen + self._distinct, len(self._sizes))
        return [each for each in free if each != chosen] if self._distinct else free

    def _count(self, free: Sequence[int], count: int) -> int:
        """In how many ways the last `count` places are decided."""
        if not self._distinct and not self._sorted:
            return sum(self._sizes) ** count
        sizes = tuple(self._sizes[each] for each in free)
        found = _combinations(sizes, count, not self._distinct)
        return found if self._sorted else found * math.factorial(count)


@functools.lru_cache(maxsize=4096)
def _combinations(sizes: tuple[int, ...], count: int, repeated: bool) -> int:
    """In how many ways `count` candidates, that open `sizes` ways each, are chosen in order."""
    if len(set(sizes)) == 1:
        number = len(sizes) + count - 1 if repeated else len(sizes)
        return math.comb(number, count) * sizes[0] ** count
    # The coefficients of a generating function: see `decisions.size`.
    found = [1] + [0] * count
    for size in sizes:
        for chosen in range(1, count + 1) if repeated else range(count, 0, -1):
            found[chosen] += size * found[chosen - 1]
    return found[count]
