"""Decisions by the id of their decision point: the form in which algorithms and studies hold them.

A decision is the index of a candidate, or a number. Ids are PyGlove's: the path of the decision in
the experiment, with the choices that open it in between, as in `model.layers[0][=1/3].heads`. Only
the decisions that the others leave open are there, in the order in which they come up.

A `pg.DNA` says the same and costs a symbolic object a decision (0.1 s for a hundred decisions), so
one is made only where PyGlove asks for it.
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

Point: TypeAlias = pg.geno.Choices | pg.geno.Float
"""One decision point: a choice of `num_choices` candidates, or a number in a range."""

Choose = Callable[[Point], Sequence[int] | float]
"""Decides at one point: `num_choices` indices for a choice, or a number."""

MOST_DECISIONS = 10_000
"""How many decision points a space may have, those that only some decisions open included.

Each costs milliseconds whenever a study is opened.
"""

_SPEC_TYPES = frozenset(
    cls.__serialization_key__ for cls in (pg.geno.Space, pg.geno.Choices, pg.geno.Float, IntPoint)
)


def decide(spec: pg.DNASpec, choose: Choose) -> Decisions:
    """Walks a space and makes each decision that the earlier ones leave open.

    Args:
        spec: the space.
        choose: called once for each active decision point, owners before what they open.

    Returns:
        The decisions.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([pg.floatv(0.0, 1.0), None])))
        >>> decide(spec, lambda point: 0.5 if isinstance(point, pg.geno.Float) else [0])
        {'x': 0, 'x[=0/2]': 0.5}
    """
    decisions: Decisions = {}
    _decide(spec, choose, decisions)
    return decisions


def _decide(spec: pg.DNASpec, choose: Choose, decisions: Decisions) -> None:
    if isinstance(spec, pg.geno.Space):
        for element in spec.elements:
            _decide(element, choose, decisions)
    elif isinstance(spec, pg.geno.Float):
        decisions[spec.id.path] = choose(spec)  # type: ignore[assignment]
    else:
        for place, index in zip(places(spec), choose(spec), strict=True):  # type: ignore[arg-type]
            decisions[place.id.path] = index
            _decide(place.candidates[index], choose, decisions)


def is_integer(point: Point) -> bool:
    """Whether what is decided at a point is a whole number from a range."""
    return isinstance(point, IntPoint)


def places(point: pg.geno.Choices) -> list[pg.geno.Choices]:
    """The single choices that a choice of several candidates is made of, each with its own id."""
    return [point.subchoice(place) for place in range(point.num_choices)]


def numeric_candidates(choice: pg.geno.Choices) -> list[float]:
    """The numbers that a choice is between; empty where its candidates are not distinct numbers."""
    literals = choice.literal_values or []
    if not all(type(literal) in (int, float) for literal in literals):
        return []
    try:
        values = [float(literal) for literal in literals]
    except OverflowError:
        return []
    distinct = len(set(values)) == len(values) and all(map(math.isfinite, values))
    return values if distinct else []


def ids(point: Point) -> list[str]:
    """The ids of what is decided at a point: one, or one for each of several candidates."""
    if isinstance(point, pg.geno.Float):
        return [point.id.path]
    return [place.id.path for place in places(point)]


def points(spec: pg.DNASpec) -> Iterator[Point]:
    """All decision points of a space, owners before what they may open."""
    if isinstance(spec, pg.geno.Space):
        for element in spec.elements:
            yield from points(element)
        return
    yield spec
    if isinstance(spec, pg.geno.Choices):
        for place in places(spec):
            for candidate in place.candidates:
                yield from points(candidate)


def active_points(spec: pg.DNASpec, decisions: Decisions) -> Iterator[Point]:
    """The decision points that `decisions` decide, owners before what they open."""
    if isinstance(spec, pg.geno.Space):
        for element in spec.elements:
            yield from active_points(element, decisions)
        return
    yield spec
    if isinstance(spec, pg.geno.Choices):
        for place in places(spec):
            yield from active_points(place.candidates[decisions[place.id.path]], decisions)


def to_dna(spec: pg.DNASpec, decisions: Decisions) -> pg.DNA:
    """The PyGlove form of decisions.

    Raises:
        ValueError: they are out of range, repeated or out of order where that is not allowed.
    """
    return _to_dna(spec, decisions).use_spec(spec)


def _to_dna(spec: pg.DNASpec, decisions: Decisions) -> pg.DNA:
    if isinstance(spec, pg.geno.Space):
        return pg.DNA(None, [_to_dna(element, decisions) for element in spec.elements])
    if isinstance(spec, pg.geno.Float):
        number = decisions[spec.id.path]
        if is_integer(spec) and not isinstance(number, int):
            raise ValueError(f'{spec.id.path}: expected a whole number: {number}')
        return pg.DNA(float(number))
    chosen = []
    for place in places(spec):
        index = decisions[place.id.path]
        chosen.append(pg.DNA(index, [_to_dna(place.candidates[index], decisions)]))
    return pg.DNA(None, chosen)


def from_dna(spec: pg.DNASpec, dna: pg.DNA) -> Decisions:
    """The decisions of a DNA. The inverse of `to_dna`."""
    numbers = iter(dna.to_numbers())
    decisions: Decisions = {}
    _from_numbers(spec, numbers, decisions)
    return decisions


def _from_numbers(spec: pg.DNASpec, numbers: Iterator[Any], decisions: Decisions) -> None:
    if isinstance(spec, pg.geno.Space):
        for element in spec.elements:
            _from_numbers(element, numbers, decisions)
    elif isinstance(spec, pg.geno.Float):
        number = next(numbers)
        decisions[spec.id.path] = int(number) if is_integer(spec) else number
    else:
        for place in places(spec):
            index = decisions[place.id.path] = next(numbers)
            _from_numbers(place.candidates[index], numbers, decisions)


def size(spec: pg.DNASpec) -> int | None:
    """How many decisions a space allows; None where a range of floats makes them countless.

    (PyGlove's own number takes time that is exponential in the number of candidates.)

    Example:
        >>> size(pg.dna_spec(pg.Dict(x=pg.manyof(2, [1, 2, pg.oneof([3, 4])]))))
        10
    """
    if isinstance(spec, IntPoint):
        return int(spec.max_value) - int(spec.min_value) + 1
    if isinstance(spec, pg.geno.Float):
        return None
    parts = spec.elements if isinstance(spec, pg.geno.Space) else spec.candidates
    sizes = [found for found in map(size, parts) if found is not None]
    if len(sizes) < len(parts):
        return None
    return math.prod(sizes) if isinstance(spec, pg.geno.Space) else _num_choices(spec, sizes)


def _num_choices(point: pg.geno.Choices, sizes: Sequence[int]) -> int:
    """In how many ways candidates that allow `sizes` decisions each are chosen."""
    count = point.num_choices
    if not point.distinct and not point.sorted:
        return sum(sizes) ** count
    # The coefficients of a generating function: `ways[n]` is the number of ways to choose n of
    # the candidates so far, in order. Each of them multiplies it by 1 + size·x where it may be
    # chosen once, and by 1 / (1 - size·x) where it may be chosen again and again.
    ways = [1] + [0] * count
    for each in sizes:
        for chosen in range(count, 0, -1) if point.distinct else range(1, count + 1):
            ways[chosen] += each * ways[chosen - 1]
    return ways[count] if point.sorted else ways[count] * math.factorial(count)


def enumerate_decisions(spec: pg.DNASpec) -> Iterator[Decisions]:
    """All decisions that a space allows, made one at a time; the last decision changes fastest.

    Raises:
        ValueError: a range of floats makes them countless.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a', pg.oneof(['b', 'c'])])))
        >>> list(enumerate_decisions(spec))
        [{'x': 0}, {'x': 1, 'x[=1/2]': 0}, {'x': 1, 'x[=1/2]': 1}]
    """
    if size(spec) is None:
        raise ValueError('the space is countless: it holds a range of floats')
    return _enumerate(spec)


def _enumerate(spec: pg.DNASpec) -> Iterator[Decisions]:
    if isinstance(spec, pg.geno.Space):
        return _in_turn([functools.partial(_anyhow, element) for element in spec.elements])
    if isinstance(spec, pg.geno.Float):
        numbers = range(int(spec.min_value), int(spec.max_value) + 1)
        return ({spec.id.path: number} for number in numbers)
    return _in_turn([functools.partial(_at_place, spec, n) for n in range(spec.num_choices)])


def _in_turn(ways: Sequence[Callable[[Decisions], Iterator[Decisions]]]) -> Iterator[Decisions]:
    """All that comes of deciding in several ways, one after the other.

    Args:
        ways: each is given what the earlier ones decided.
    """
    if not ways:
        yield {}
        return
    # Not by recursion: a space may hold more decisions than Python allows calls in each other.
    before: list[Decisions] = [{}]
    open_ = [ways[0]({})]
    while open_:
        decided = next(open_[-1], None)
        if decided is None:
            open_.pop()
            before.pop()
        elif len(open_) == len(ways):
            yield before[-1] | decided
        else:
            before.append(before[-1] | decided)
            open_.append(ways[len(open_)](before[-1]))


def _anyhow(spec: pg.DNASpec, before: Decisions) -> Iterator[Decisions]:
    return _enumerate(spec)


def _at_place(point: pg.geno.Choices, number: int, before: Decisions) -> Iterator[Decisions]:
    """What may be chosen in one place, and all that it opens."""
    place = places(point)[number]
    chosen = [before[earlier.id.path] for earlier in places(point)[:number]]
    for index, candidate in enumerate(place.candidates):
        if point.distinct and index in chosen:
            continue
        if point.sorted and index < max(chosen, default=0):
            continue
        for opened in _enumerate(candidate):
            yield {place.id.path: index} | opened


def spec_to_json(spec: pg.DNASpec) -> str:
    """A space as JSON, to be stored with the study."""
    text: str = pg.to_json_str(spec)
    return text


@functools.lru_cache(maxsize=16)
def spec_from_json(text: str) -> pg.DNASpec:
    """A space from JSON that nobody needs to trust: only PyGlove's three kinds of nodes are made.

    Raises:
        ValueError: the text is no space, or names another class.
    """
    try:
        _refuse_others(json.loads(text))
        spec = pg.from_json_str(text, auto_import=False)
    except (
        ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError,
        ValueError,
    ) as error:  # fmt: skip
        raise ValueError(f'not a search space: {in_short(error)}') from error
    if not isinstance(spec, pg.DNASpec):
        raise ValueError(f'not a search space, but a {type(spec).__name__}')
    return spec


def _refuse_others(value: Any, times: int = 1) -> None:
    """Refuses JSON that names what is no part of a space, or that makes too many decisions.

    Args:
        value: parsed JSON.
        times: how often it stands in the space.
    """
    if isinstance(value, dict):
        count = value.get('num_choices', 1)
        if not isinstance(count, int) or count * times > MOST_DECISIONS:
            raise ValueError(f'not part of a search space: {count!r} choices')
        times *= max(count, 1)
        name = value.get('_type')
        if name is not None and not (isinstance(name, str) and name in _SPEC_TYPES):
            raise ValueError(f'not part of a search space: {name!r}')
        for child in value.values():
            _refuse_others(child, times)
    elif isinstance(value, list):
        if value[:1] == ['__tuple__']:
            raise ValueError('not part of a search space: a tuple')
        for child in value:
            _refuse_others(child, times)
