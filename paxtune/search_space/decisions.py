"""Decisions by the id of their decision point: the form in which algorithms and studies hold them.

A decision is the index of a candidate, or a number. Ids are PyGlove's: the path of the decision in
the experiment with the choices on the way, as in `model.layers[0][=1/3].heads`. Only active
decisions are included, in the order of the space.

A `pg.DNA` has the same content, but needs a symbolic object for each decision (0.1 s for a hundred
decisions). It is created only where PyGlove requires it.
"""

import functools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pyglove as pg

from trainer.symbolic.errors import in_short
from trainer.symbolic.ranges import IntPoint

Decisions = dict[str, int | float]
"""{id of the decision point: index of a candidate, or number}, in the order of the space.

A number from a range of integers is an int, one from any other range a float.
"""

DecisionPoint: TypeAlias = pg.geno.Choices | pg.geno.Float
"""One decision point: a choice of `num_choices` candidates, or a number in a range."""

Choose = Callable[[DecisionPoint], Sequence[int] | float]
"""Decides at one point: `num_choices` indices for a choice, or a number."""

MAX_DECISIONS = 10_000
"""Maximum number of decision points of a space, conditional ones included.

Each costs milliseconds whenever a study is opened.
"""

_SPEC_TYPES = frozenset(
    cls.__serialization_key__ for cls in (pg.geno.Space, pg.geno.Choices, pg.geno.Float, IntPoint)
)


def decide(spec: pg.DNASpec, choose: Choose) -> Decisions:
    """Makes decisions from the outside in.

    `choose` is called once for each active decision point, parents before their children.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([pg.floatv(0.0, 1.0), None])))
        >>> decide(spec, lambda point: 0.5 if isinstance(point, pg.geno.Float) else [0])
        {'x': 0, 'x[=0/2]': 0.5}
    """
    decisions: Decisions = {}
    _decide(spec, choose, decisions)
    return decisions


def _decide(spec: pg.DNASpec, choose: Callable[[DecisionPoint], Any], decisions: Decisions) -> None:
    if isinstance(spec, pg.geno.Space):
        for element in spec.elements:
            _decide(element, choose, decisions)
    elif isinstance(spec, pg.geno.Float):
        decisions[spec.id.path] = choose(spec)
    else:
        for slot, index in zip(slots(spec), choose(spec), strict=True):
            decisions[slot.id.path] = index
            _decide(slot.candidates[index], choose, decisions)


def is_integer(point: DecisionPoint) -> bool:
    """Returns True for a range of integers."""
    return isinstance(point, IntPoint)


def is_legal(slot: DecisionPoint, value: int | float) -> bool:
    """Returns True for the index of a candidate, or a number of a range."""
    if isinstance(slot, pg.geno.Choices):
        return isinstance(value, int) and 0 <= value < len(slot.candidates)
    has_type = isinstance(value, int) or not is_integer(slot)
    return has_type and bool(slot.min_value <= value <= slot.max_value)


def slots(point: DecisionPoint) -> list[DecisionPoint]:
    """Single choices of a choice of several candidates, with own ids; a range stands alone."""
    if isinstance(point, pg.geno.Float):
        return [point]
    return [point.subchoice(slot) for slot in range(point.num_choices)]


def numeric_candidates(choice: pg.geno.Choices) -> list[float]:
    """Numbers that a choice is between; empty unless its candidates are distinct numbers."""
    literals = choice.literal_values or []
    if not all(type(literal) in (int, float) for literal in literals):
        return []
    try:
        values = [float(literal) for literal in literals]
    except OverflowError:
        return []
    distinct = len(set(values)) == len(values) and all(map(math.isfinite, values))
    return values if distinct else []


def slot_ids(point: DecisionPoint) -> list[str]:
    """Ids of the decisions at a point: one, or one for each slot."""
    return [slot.id.path for slot in slots(point)]


def all_slots(spec: pg.DNASpec) -> list[DecisionPoint]:
    """Single decisions of a space, parents before their children."""
    return [slot for point in decision_points(spec) for slot in slots(point)]


def decision_points(spec: pg.DNASpec) -> Iterator[DecisionPoint]:
    """All decision points of a space, parents before their children."""
    return _points(spec, lambda slot: slot.candidates)


def active_decision_points(spec: pg.DNASpec, decisions: Decisions) -> Iterator[DecisionPoint]:
    """Decision points that are active in `decisions`, parents before their children."""
    return _points(spec, lambda slot: [slot.candidates[decisions[slot.id.path]]])


def _points(
    spec: pg.DNASpec, opened: Callable[[pg.geno.Choices], Sequence[pg.DNASpec]]
) -> Iterator[DecisionPoint]:
    if isinstance(spec, pg.geno.Space):
        for element in spec.elements:
            yield from _points(element, opened)
        return
    yield spec
    if isinstance(spec, pg.geno.Choices):
        for slot in slots(spec):
            for candidate in opened(slot):
                yield from _points(candidate, opened)


def to_dna(spec: pg.DNASpec, decisions: Decisions) -> pg.DNA:
    """Converts decisions to PyGlove's form.

    Raises:
        ValueError: decisions are out of range, or not distinct or sorted as required.
    """
    return _to_dna(spec, decisions).use_spec(spec)


def _to_dna(spec: pg.DNASpec, decisions: Decisions) -> pg.DNA:
    if isinstance(spec, pg.geno.Space):
        return pg.DNA(None, [_to_dna(element, decisions) for element in spec.elements])
    if isinstance(spec, pg.geno.Float):
        number = decisions[spec.id.path]
        if is_integer(spec) and not isinstance(number, int):
            raise ValueError(f'{spec.id.path}: expected an integer: {number}')
        return pg.DNA(float(number))
    chosen = []
    for slot in slots(spec):
        index = decisions[slot.id.path]
        chosen.append(pg.DNA(index, [_to_dna(slot.candidates[index], decisions)]))
    return pg.DNA(None, chosen)


def from_dna(spec: pg.DNASpec, dna: pg.DNA) -> Decisions:
    """Converts a DNA to decisions: the inverse of `to_dna`."""
    decisions: Decisions = {}
    _from_numbers(spec, iter(dna.to_numbers()), decisions)
    return decisions


def _from_numbers(spec: pg.DNASpec, numbers: Iterator[Any], decisions: Decisions) -> None:
    if isinstance(spec, pg.geno.Space):
        for element in spec.elements:
            _from_numbers(element, numbers, decisions)
    elif isinstance(spec, pg.geno.Float):
        number = next(numbers)
        decisions[spec.id.path] = int(number) if is_integer(spec) else number
    else:
        for slot in slots(spec):
            index = decisions[slot.id.path] = next(numbers)
            _from_numbers(slot.candidates[index], numbers, decisions)


def size(spec: pg.DNASpec) -> int | None:
    """Number of elements of a space; None if a range of floats makes it infinite.

    A range of equal bounds is a constant.

    (PyGlove's own count takes time that is exponential in the number of candidates.)

    Example:
        >>> size(pg.dna_spec(pg.Dict(x=pg.manyof(2, [1, 2, pg.oneof([3, 4])]))))
        10
    """
    if isinstance(spec, IntPoint):
        return int(spec.max_value) - int(spec.min_value) + 1
    if isinstance(spec, pg.geno.Float):
        return 1 if spec.min_value == spec.max_value else None
    parts = spec.elements if isinstance(spec, pg.geno.Space) else spec.candidates
    sizes = [found for found in map(size, parts) if found is not None]
    if len(sizes) < len(parts):
        return None
    if isinstance(spec, pg.geno.Space):
        return math.prod(sizes)
    return num_assignments(tuple(sizes), spec.num_choices, spec.distinct, spec.sorted)


@functools.lru_cache(maxsize=4096)
def num_assignments(sizes: tuple[int, ...], count: int, distinct: bool, is_sorted: bool) -> int:
    """Number of assignments of `count` slots.

    The candidates allow `sizes` decisions each. Slots may have to be distinct, or sorted.
    """
    if not distinct and not is_sorted:
        return sum(sizes) ** count
    found = _num_combinations(sizes, count, distinct)
    return found if is_sorted else found * math.factorial(count)


def _num_combinations(sizes: Sequence[int], count: int, distinct: bool) -> int:
    if len(set(sizes)) == 1:
        number = len(sizes) if distinct else len(sizes) + count - 1
        return math.comb(number, count) * sizes[0] ** count
    # Coefficients of a generating function. A candidate that may be chosen once contributes the
    # factor 1 + size·x, one that may repeat 1 / (1 - size·x).
    found = [1] + [0] * count
    for each in sizes:
        for chosen in range(count, 0, -1) if distinct else range(1, count + 1):
            found[chosen] += each * found[chosen - 1]
    return found[count]


def spec_to_json(spec: pg.DNASpec) -> str:
    """Serializes a space for storage in a study."""
    return str(pg.to_json_str(spec))


@functools.lru_cache(maxsize=16)
def spec_from_json(text: str) -> pg.DNASpec:
    """Parses a space from untrusted JSON: only the classes of decision points are instantiated.

    Raises:
        ValueError: the text is no space, or names another class.
    """
    try:
        _validate_json(json.loads(text))
        spec = pg.from_json_str(text, auto_import=False)
    except (
        ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError,
        ValueError,
    ) as error:  # fmt: skip
        raise ValueError(f'not a search space: {in_short(error)}') from error
    if not isinstance(spec, pg.DNASpec):
        raise ValueError(f'not a search space, but a {type(spec).__name__}')
    return spec


def _validate_json(value: Any, times: int = 1) -> None:
    """Rejects JSON that names other classes, or has too many decisions in all repetitions."""
    if isinstance(value, dict):
        count = value.get('num_choices', 1)
        if not isinstance(count, int) or count * times > MAX_DECISIONS:
            raise ValueError(f'not part of a search space: {count!r} choices')
        times *= max(count, 1)
        name = value.get('_type')
        if name is not None and not (isinstance(name, str) and name in _SPEC_TYPES):
            raise ValueError(f'not part of a search space: {name!r}')
        for child in value.values():
            _validate_json(child, times)
    elif isinstance(value, list):
        if value[:1] == ['__tuple__']:
            raise ValueError('not part of a search space: a tuple')
        for child in value:
            _validate_json(child, times)
