"""Search spaces and decisions in Vizier's terms.

Every decision point becomes a Vizier parameter of the same id: a range becomes DOUBLE or INTEGER
with its scale, a choice between numbers DISCRETE, any other choice CATEGORICAL, with the points
that a candidate opens as its conditional children. A choice of several candidates becomes one
parameter for each of them; that they must differ or be sorted has no form in Vizier, and only
`pg.DNASpec` says it. (Vizier's own converter imports JAX, and knows rewards that are maximized
only.)
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pyglove as pg
from vizier._src.service import study_pb2

from paxtune.search_space.decisions import (
    DecisionPoint,
    Decisions,
    active_decision_points,
    is_integer,
    numeric_candidates,
    slots,
)

ParameterSpec: TypeAlias = study_pb2.StudySpec.ParameterSpec

_ROOT = '$'  # Vizier wants a name; the id of a decision about the whole experiment is empty.
_SCALES = {
    None: ParameterSpec.UNIT_LINEAR_SCALE,
    'linear': ParameterSpec.UNIT_LINEAR_SCALE,
    'log': ParameterSpec.UNIT_LOG_SCALE,
    'rlog': ParameterSpec.UNIT_REVERSE_LOG_SCALE,
}


def to_search_space(spec: pg.DNASpec) -> list[ParameterSpec]:
    """The Vizier search space of a PyGlove one, as it stands in a study.

    These are protocol buffers, because `vz.SearchSpace` loses conditional parameters from the third
    level on when it becomes one.
    """
    if isinstance(spec, pg.geno.Space):
        return [parameter for element in spec.elements for parameter in to_search_space(element)]
    if isinstance(spec, pg.geno.Float):
        return [_range(spec)]
    return [_choice(place) for place in slots(spec)]


def _range(point: pg.geno.Float) -> ParameterSpec:
    parameter = ParameterSpec(parameter_id=_name(point), scale_type=_SCALES[point.scale])
    if is_integer(point):
        parameter.integer_value_spec.min_value = int(point.min_value)
        parameter.integer_value_spec.max_value = int(point.max_value)
    else:
        parameter.double_value_spec.min_value = point.min_value
        parameter.double_value_spec.max_value = point.max_value
    return parameter


def _choice(choice: pg.geno.Choices) -> ParameterSpec:
    parameter = ParameterSpec(parameter_id=_name(choice))
    if numbers := numeric_candidates(choice):
        parameter.discrete_value_spec.values.extend(sorted(numbers))
        return parameter
    for index, candidate in enumerate(choice.candidates):
        category = _category(choice, index)
        parameter.categorical_value_spec.values.append(category)
        for opened in to_search_space(candidate):
            conditional = parameter.conditional_parameter_specs.add(parameter_spec=opened)
            conditional.parent_categorical_values.values.append(category)
    return parameter


def to_parameters(spec: pg.DNASpec, decisions: Decisions) -> dict[str, str | float]:
    """Decisions as the parameters of a Vizier trial."""
    parameters: dict[str, str | float] = {}
    for point in active_decision_points(spec, decisions):
        if isinstance(point, pg.geno.Float):
            parameters[_name(point)] = decisions[point.id.path]
            continue
        for place in slots(point):
            index = int(decisions[place.id.path])
            numbers = numeric_candidates(place)
            parameters[_name(place)] = numbers[index] if numbers else _category(place, index)
    return parameters


def from_parameters(spec: pg.DNASpec, parameters: Mapping[str, str | float]) -> Decisions:
    """The decisions of a Vizier trial. The inverse of `to_parameters`.

    Raises:
        ValueError: the parameters do not belong to this space.
    """
    return reader(spec)(parameters)


def reader(spec: pg.DNASpec) -> Callable[[Mapping[str, str | float]], Decisions]:
    """`from_parameters` for many trials of one space."""
    plan = _plan(spec)

    def read(parameters: Mapping[str, str | float]) -> Decisions:
        decisions: Decisions = {}
        _decide(plan, parameters, decisions)
        if len(parameters) > len(decisions):
            extra = set(parameters) - {id_ or _ROOT for id_ in decisions}
            raise ValueError(f'parameters that are not part of the search space: {sorted(extra)}')
        return decisions

    return read


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """A place where something is decided, in plain Python: to look into symbolic objects for each
    of thousands of trials takes a hundred times as long.

    Attributes:
        id: of the decision.
        parameter: its name in Vizier.
        is_integer: whether a number of a range is whole.
        indices: the candidates by their values in Vizier.
        opened: what each candidate opens; None for a range.
    """

    id: str
    parameter: str
    is_integer: bool
    indices: Mapping[str | float, int]
    opened: Sequence[Sequence['_Place']] | None


def _plan(spec: pg.DNASpec) -> list[_Place]:
    if isinstance(spec, pg.geno.Space):
        return [place for element in spec.elements for place in _plan(element)]
    if isinstance(spec, pg.geno.Float):
        return [_Place(spec.id.path, _name(spec), is_integer(spec), {}, None)]
    found = []
    for place in slots(spec):
        opened = [_plan(candidate) for candidate in place.candidates]
        numbers: Sequence[str | float] = numeric_candidates(place)
        values = numbers or [_category(place, index) for index in range(len(opened))]
        indices = {value: index for index, value in enumerate(values)}
        found.append(_Place(place.id.path, _name(place), False, indices, opened))
    return found


def _decide(
    plan: Sequence[_Place], parameters: Mapping[str, str | float], decisions: Decisions
) -> None:
    for place in plan:
        try:
            value = parameters[place.parameter]
        except KeyError:
            raise ValueError(f'no value for parameter {place.parameter!r}') from None
        if place.opened is None:
            decisions[place.id] = _number(place, value)
            continue
        index = place.indices.get(value)
        if index is None:
            index = _index(place, value)
        decisions[place.id] = index
        if opened := place.opened[index]:
            _decide(opened, parameters, decisions)


def _number(place: _Place, value: str | float) -> int | float:
    number = float(value)
    if not place.is_integer:
        return number
    if not number.is_integer():
        raise ValueError(f'{value!r} is not a value of parameter {place.parameter!r}')
    return int(number)


def _index(place: _Place, value: str | float) -> int:
    # The index alone counts: what follows is for people, and may have read otherwise in an
    # earlier version.
    index = str(value).partition('/')[0]
    are_categories = all(isinstance(each, str) for each in place.indices)
    if are_categories and index.isdecimal() and int(index) < len(place.indices):
        return int(index)
    raise ValueError(f'{value!r} is not a value of parameter {place.parameter!r}')


def _name(point: DecisionPoint) -> str:
    return point.id.path or _ROOT


def _category(choice: pg.geno.Choices, index: int) -> str:
    return str(choice.format_candidate(index))
