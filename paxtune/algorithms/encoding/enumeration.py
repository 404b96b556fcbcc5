"""Enumeration of a finite space: its size, and random access by index.

The last decision changes fastest, as in `pg.DNASpec.iter_dna`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import pyglove as pg

from paxtune.algorithms.encoding.cache import per_spec
from paxtune.algorithms.encoding.scaling import from_unit
from paxtune.search_space.decisions import Decisions, is_integer, num_assignments, slots

_ROUNDING = 1e-3  # At most, as a share of the distance to the next value.


@dataclasses.dataclass(frozen=True)
class Enumeration:
    """All decisions of a space.

    Attributes:
        size: number of elements.
        at: returns the element at an index below the size.
    """

    size: int
    at: Callable[[int], Decisions]


def enumerate_decisions(spec: pg.DNASpec) -> Iterator[Decisions]:
    """Enumerates all decisions of a space.

    Raises:
        ValueError: a range of floats makes the space infinite.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a', pg.oneof(['b', 'c'])])))
        >>> list(enumerate_decisions(spec))
        [{'x': 0}, {'x': 1, 'x[=1/2]': 0}, {'x': 1, 'x[=1/2]': 1}]
    """
    found = enumeration(spec)
    return (found.at(index) for index in range(found.size))


@per_spec
def enumeration(spec: pg.DNASpec, points_per_range: int | None = None) -> Enumeration:
    """Enumerates a space.

    With `points_per_range` each range is reduced to this number of values, evenly on its scale
    and with both bounds. Integer ranges with no more values are complete, and all without it.

    Raises:
        ValueError: a range of floats cannot be complete.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.manyof(2, 'abc'), rate=pg.floatv(1e-4, 1.0, 'log')))
        >>> found = enumeration(spec, 3)
        >>> found.size
        18
        >>> found.at(7)
        {'x[0]': 1, 'x[1]': 0, 'rate': 0.01}
    """
    return _enumeration(spec, points_per_range)


def _enumeration(spec: pg.DNASpec, points_per_range: int | None) -> Enumeration:
    if isinstance(spec, pg.geno.Space):
        return _product([_enumeration(element, points_per_range) for element in spec.elements])
    if isinstance(spec, pg.geno.Float):
        id_, values = spec.id.path, _values(spec, points_per_range)
        return Enumeration(len(values), lambda index: {id_: values[index]})
    choice = _Choice(spec, points_per_range)
    return Enumeration(choice.size, choice.at)


def _product(parts: Sequence[Enumeration]) -> Enumeration:
    def at(index: int) -> Decisions:
        digits = []
        for part in reversed(parts):
            index, digit = divmod(index, part.size)
            digits.append(digit)
        found: Decisions = {}
        for part, digit in zip(parts, reversed(digits), strict=True):
            found |= part.at(digit)
        return found

    return Enumeration(math.prod(part.size for part in parts), at)


def _values(point: pg.geno.Float, count: int | None) -> Sequence[int | float]:
    if is_integer(point):
        integers = range(int(point.min_value), int(point.max_value) + 1)
        if count is None or len(integers) <= count:
            return integers
    low, high = float(point.min_value), float(point.max_value)
    if low == high:
        return [low]
    if count is None:
        raise ValueError(f'{point.id.path}: a range of floats has infinitely many values')
    units = [i / (count - 1) for i in range(count)] if count > 1 else [0.5]
    values = sorted(from_unit(point, unit) for unit in units)
    kind = int if is_integer(point) else float
    inner = values[1:-1] if count > 1 else values
    if kind is float:
        near = zip([low, *inner], inner, [*inner[1:], high], strict=False)
        inner = [_readable(*each) for each in near]
    # Logarithms may miss the bounds.
    return sorted({kind(low), *inner, kind(high)} if count > 1 else inner)


def _readable(below: float, number: float, above: float) -> float:
    """Rounds 0.010000000000000004, the result of logarithms, to 0.01.

    A number between near ones stays as it is.
    """
    rounded = float(f'{number:.12g}')
    is_same = abs(rounded - number) <= _ROUNDING * min(number - below, above - number)
    return rounded if is_same else number


class _Choice:
    def __init__(self, point: pg.geno.Choices, points_per_range: int | None) -> None:
        self._distinct, self._sorted = point.distinct, point.sorted
        self._ids = [slot.id.path for slot in slots(point)]
        self._inner = [
            [_enumeration(candidate, points_per_range) for candidate in slot.candidates]
            for slot in slots(point)
        ]
        self._sizes = tuple(each.size for each in self._inner[0])
        self.size = self._count(range(len(self._sizes)), len(self._ids))

    def at(self, index: int) -> Decisions:
        found: Decisions = {}
        free: Sequence[int] = range(len(self._sizes))
        for slot, id_ in enumerate(self._ids):
            left = len(self._ids) - slot - 1
            for chosen in free:
                remaining = self._remaining(free, chosen)
                count = self._count(remaining, left)
                if index < self._sizes[chosen] * count:
                    break
                index -= self._sizes[chosen] * count
            inside, index = divmod(index, count)
            found[id_] = chosen
            found |= self._inner[slot][chosen].at(inside)
            free = remaining
        return found

    def _remaining(self, free: Sequence[int], chosen: int) -> Sequence[int]:
        """Candidates for the next slot after one was chosen."""
        if self._sorted:
            return range(chosen + self._distinct, len(self._sizes))
        return [each for each in free if each != chosen] if self._distinct else free

    def _count(self, candidates: Sequence[int], count: int) -> int:
        """Number of assignments of the last `count` slots."""
        sizes = tuple(self._sizes[each] for each in candidates)
        return num_assignments(sizes, count, self._distinct, self._sorted)
