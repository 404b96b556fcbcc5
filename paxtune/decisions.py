"""Decisions by the id of their decision point: the form in which algorithms and studies hold them.

A decision is the index of a candidate, or a number. Ids are PyGlove's: the path of the decision in
the experiment, with the choices that open it in between, as in `model.layers[0][=1/3].heads`. Only
the decisions that the others leave open are there, in the order in which they come up.

A `pg.DNA` says the same and costs a symbolic object a decision (0.1 s for a hundred decisions), so
one is made only where PyGlove asks for it.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pyglove as pg

Decisions = dict[str, int | float]
"""{id of the decision point: index of a candidate, or number}, in the order of the space."""

Point: TypeAlias = pg.geno.Choices | pg.geno.Float
"""One decision point: a choice of `num_choices` candidates, or a number in a range."""

Choose = Callable[[Point], Sequence[int] | float]
"""Decides at one point: `num_choices` indices for a choice, a float for a number."""

_SPEC_TYPES = frozenset(
    cls.__serialization_key__ for cls in (pg.geno.Space, pg.geno.Choices, pg.geno.Float)
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


def places(point: pg.geno.Choices) -> list[pg.geno.Choices]:
    """The single choices that a choice of several candidates is made of, each with its own id."""
    return [point.subchoice(place) for place in range(point.num_choices)]


def ids(point: Point) -> list[str]:
    """The ids of what is decided at a point: one, or one for each of several candidates."""
    if isinstance(point, pg.geno.Float):
        return [point.id.path]
    return [place.id.path for place in places(point)]


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
        return pg.DNA(decisions[spec.id.path])
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
        decisions[spec.id.path] = next(numbers)
    else:
        for place in places(spec):
            index = decisions[place.id.path] = next(numbers)
            _from_numbers(place.candidates[index], numbers, decisions)


def size(spec: pg.DNASpec) -> int | None:
    """How many different experiments a space holds; None where a range makes them countless."""
    count: int = spec.space_size
    return None if count < 0 else count


def spec_to_json(spec: pg.DNASpec) -> str:
    """A space as JSON, to be stored with the study."""
    text: str = pg.to_json_str(spec)
    return text


@functools.lru_cache(maxsize=16)
def spec_from_json(text: str) -> pg.DNASpec:
    """A space from JSON that nobody needs to trust: only PyGlove's three kinds of nodes are made.

    Raises:
        ValueError: the text names another class.
    """
    _refuse_others(json.loads(text))
    return pg.from_json_str(text, auto_import=False)


def _refuse_others(value: Any) -> None:
    if isinstance(value, dict):
        name = value.get('_type')
        if name is not None and not (isinstance(name, str) and name in _SPEC_TYPES):
            raise ValueError(f'not part of a search space: {name!r}')
        for child in value.values():
            _refuse_others(child)
    elif isinstance(value, list):
        if value[:1] == ['__tuple__']:
            raise ValueError('not part of a search space: a tuple')
        for child in value:
            _refuse_others(child)
