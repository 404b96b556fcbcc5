"""Search spaces and decisions as Vizier parameters.

Every decision point becomes a Vizier parameter of the same id. A range becomes DOUBLE or INTEGER
with its scale, a choice between numbers DISCRETE, any other choice CATEGORICAL. The decision points
inside a candidate become its conditional children. A choice of several candidates becomes one
parameter for each slot. Vizier cannot express distinct or sorted slots, which only the `pg.DNASpec`
does. (Vizier's own converter imports JAX, and supports only rewards that are maximized.)
"""

import dataclasses
import math
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

_ROOT = '$'  # Vizier requires a name; the id of a decision at the root is empty.
_SCALES = {
    None: ParameterSpec.UNIT_LINEAR_SCALE,
    'linear': ParameterSpec.UNIT_LINEAR_SCALE,
    'log': ParameterSpec.UNIT_LOG_SCALE,
    'rlog': ParameterSpec.UNIT_REVERSE_LOG_SCALE,
}


def to_search_space(spec: pg.DNASpec) -> list[ParameterSpec]:
    """Converts a space to the parameters of a Vizier study.

    They are protocol buffers, because `vz.SearchSpace` loses conditional parameters from the third
    level on in its conversion.
    """
    if isinstance(spec, pg.geno.Space):
        return [parameter for element in spec.elements for parameter in to_search_space(element)]
    if isinstance(spec, pg.geno.Float):
        return [_range(spec)]
    return [_choice(slot) for slot in slots(spec)]


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
        for child in to_search_space(candidate):
            conditional = parameter.conditional_parameter_specs.add(parameter_spec=child)
            conditional.parent_categorical_values.values.append(category)
    return parameter


def to_parameters(spec: pg.DNASpec, decisions: Decisions) -> dict[str, str | float]:
    """Converts decisions to the parameters of a Vizier trial."""
    parameters: dict[str, str | float] = {}
    for point in active_decision_points(spec, decisions):
        if isinstance(point, pg.geno.Float):
            parameters[_name(point)] = decisions[point.id.path]
            continue
        for slot in slots(point):
            index = int(decisions[slot.id.path])
            numbers = numeric_candidates(slot)
            parameters[_name(slot)] = numbers[index] if numbers else _category(slot, index)
    return parameters


def reader(spec: pg.DNASpec) -> Callable[[Mapping[str, str | float]], Decisions]:
    """Creates the inverse of `to_parameters` for the trials of one space.

    Returns:
        A function from the parameters of a Vizier trial to decisions. It raises ValueError if the
        parameters do not belong to this space.
    """
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
class _Slot:
    # In plain Python: reading symbolic objects for each trial is a hundred times slower.
    id: str
    parameter: str  # The name in Vizier.
    is_integer: bool
    indices: Mapping[str | float, int]  # Candidates by their values in Vizier.
    children: Sequence[Sequence['_Slot']] | None  # Inside each candidate; None for a range.
    bounds: tuple[float, float] = (-math.inf, math.inf)
    earlier: Sequence[str] = ()  # The ids of the slots before it, where these restrict it.
    is_distinct: bool = False
    is_sorted: bool = False


def _plan(spec: pg.DNASpec) -> list[_Slot]:
    if isinstance(spec, pg.geno.Space):
        return [slot for element in spec.elements for slot in _plan(element)]
    if isinstance(spec, pg.geno.Float):
        bounds = spec.min_value, spec.max_value
        return [_Slot(spec.id.path, _name(spec), is_integer(spec), {}, None, bounds)]
    found: list[_Slot] = []
    for slot in slots(spec):
        earlier = [each.id for each in found] if spec.distinct or spec.sorted else []
        children = [_plan(candidate) for candidate in slot.candidates]
        numbers: Sequence[str | float] = numeric_candidates(slot)
        values = numbers or [_category(slot, index) for index in range(len(children))]
        indices = {value: index for index, value in enumerate(values)}
        made = _Slot(slot.id.path, _name(slot), False, indices, children)
        restricted = {'is_distinct': spec.distinct, 'is_sorted': spec.sorted}
        found.append(dataclasses.replace(made, earlier=earlier, **restricted))
    return found


def _decide(
    plan: Sequence[_Slot], parameters: Mapping[str, str | float], decisions: Decisions
) -> None:
    for slot in plan:
        try:
            value = parameters[slot.parameter]
        except KeyError:
            raise ValueError(f'no value for parameter {slot.parameter!r}') from None
        if slot.children is None:
            decisions[slot.id] = _number(slot, value)
            continue
        index = slot.indices.get(value)
        if index is None:
            index = _index(slot, value)
        if slot.earlier:
            _require_order(slot, index, [decisions[each] for each in slot.earlier])
        decisions[slot.id] = index
        if children := slot.children[index]:
            _decide(children, parameters, decisions)


def _number(slot: _Slot, value: str | float) -> int | float:
    number, (low, high) = float(value), slot.bounds
    if not low <= number <= high or (slot.is_integer and not number.is_integer()):
        raise ValueError(f'{value!r} is not a value of parameter {slot.parameter!r}')
    return int(number) if slot.is_integer else number


def _require_order(slot: _Slot, index: int, earlier: Sequence[int | float]) -> None:
    if (slot.is_distinct and index in earlier) or (slot.is_sorted and index < earlier[-1]):
        how = 'distinct' if slot.is_distinct and index in earlier else 'sorted'
        raise ValueError(f'the values of parameter {slot.parameter!r} are not {how}')


def _index(slot: _Slot, value: str | float) -> int:
    # Only the index counts: the rest is a display name, which may differ between versions.
    index = str(value).partition('/')[0]
    are_categorical = all(isinstance(each, str) for each in slot.indices)
    if are_categorical and index.isdecimal() and int(index) < len(slot.indices):
        return int(index)
    raise ValueError(f'{value!r} is not a value of parameter {slot.parameter!r}')


def _name(point: DecisionPoint) -> str:
    return point.id.path or _ROOT


def _category(choice: pg.geno.Choices, index: int) -> str:
    return str(choice.format_candidate(index))
