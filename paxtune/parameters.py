"""Search spaces and decisions in Vizier's terms.

Every decision point becomes a Vizier parameter of the same id: a range becomes DOUBLE with its
scale, a choice between numbers DISCRETE, any other choice CATEGORICAL, with the points that a
candidate opens as its conditional children. A choice of several candidates becomes one parameter
for each of them; that they must differ or be sorted has no form in Vizier, and only `pg.DNASpec`
says it. (Vizier's own converter imports JAX, and knows rewards that are maximized only.)
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyglove as pg
from vizier._src.service import study_pb2

from paxtune.decisions import Decisions, Point, active_points, decide, places

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
    return [_choice(place) for place in places(spec)]


def _range(point: pg.geno.Float) -> ParameterSpec:
    parameter = ParameterSpec(parameter_id=_name(point), scale_type=_SCALES[point.scale])
    parameter.double_value_spec.min_value = point.min_value
    parameter.double_value_spec.max_value = point.max_value
    return parameter


def _choice(choice: pg.geno.Choices) -> ParameterSpec:
    parameter = ParameterSpec(parameter_id=_name(choice))
    if numbers := _numbers(choice):
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
    for point in active_points(spec, decisions):
        if isinstance(point, pg.geno.Float):
            parameters[_name(point)] = decisions[point.id.path]
            continue
        for place in places(point):
            index = int(decisions[place.id.path])
            numbers = _numbers(place)
            parameters[_name(place)] = numbers[index] if numbers else _category(place, index)
    return parameters


def from_parameters(spec: pg.DNASpec, parameters: Mapping[str, str | float]) -> Decisions:
    """The decisions of a Vizier trial. The inverse of `to_parameters`.

    Raises:
        ValueError: the parameters do not belong to this space.
    """

    def choose(point: Point) -> Sequence[int] | float:
        if isinstance(point, pg.geno.Float):
            return float(_take(parameters, point))
        return [_index(place, _take(parameters, place)) for place in places(point)]

    decisions = decide(spec, choose)
    if extra := set(parameters) - {_ROOT if id_ == '' else id_ for id_ in decisions}:
        raise ValueError(f'parameters that are not part of the search space: {sorted(extra)}')
    return decisions


def _take(parameters: Mapping[str, str | float], point: Point) -> str | float:
    try:
        return parameters[_name(point)]
    except KeyError:
        raise ValueError(f'no value for parameter {_name(point)!r}') from None


def _index(choice: pg.geno.Choices, value: str | float) -> int:
    if (numbers := _numbers(choice)) and value in numbers:
        return numbers.index(float(value))
    # The index alone counts: what follows is for people, and may read otherwise in a later version.
    index = str(value).partition('/')[0]
    if not numbers and index.isdecimal() and int(index) < len(choice.candidates):
        return int(index)
    raise ValueError(f'{value!r} is not a value of parameter {_name(choice)!r}')


def _name(point: Point) -> str:
    return point.id.path or _ROOT


def _numbers(choice: pg.geno.Choices) -> list[float]:
    """The candidates as Vizier's discrete values; empty where they are not distinct numbers."""
    literals = choice.literal_values or []
    if not all(type(literal) in (int, float) for literal in literals):
        return []
    try:
        values = [float(literal) for literal in literals]
    except OverflowError:
        return []
    distinct = len(set(values)) == len(values) and all(map(math.isfinite, values))
    return values if distinct else []


def _category(choice: pg.geno.Choices, index: int) -> str:
    return str(choice.format_candidate(index))
