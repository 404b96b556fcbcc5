"""Search spaces of Vizier clients as decision points, and parameters of trials as decisions.

The opposite of `paxtune.search_space.parameters`, which describes our spaces to Vizier.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import pyglove as pg
from vizier._src.service import study_pb2

from paxtune.search_space.decisions import DecisionPoint, Decisions
from paxtune.search_space.parameters import ParameterSpec
from trainer.symbolic.ranges import IntPoint

_SCALES = {ParameterSpec.UNIT_LOG_SCALE: 'log', ParameterSpec.UNIT_REVERSE_LOG_SCALE: 'rlog'}
_MAX_INTEGERS = 1000  # Each value of a conditional parent has its own children.
_MAX_POINTS = 2000  # To build one takes a millisecond.
_MAX_INTEGER = 2**53  # PyGlove keeps the bounds as floats.

Value = str | float
Conditional: TypeAlias = study_pb2.StudySpec.ParameterSpec.ConditionalParameterSpec


class PlainSpace:
    """The search space of a Vizier study.

    A parameter becomes a decision point: DOUBLE and INTEGER a range with its scale, DISCRETE a
    choice between numbers, CATEGORICAL any other choice. A range of one value is a choice, as is an
    INTEGER with conditional children. Children are decision points in the candidates they belong
    to, one in each.

    Attributes:
        spec: the space as algorithms see it.

    Example:
        >>> rate = ParameterSpec(parameter_id='rate', scale_type='UNIT_LOG_SCALE')
        >>> rate.double_value_spec.min_value, rate.double_value_spec.max_value = 1e-4, 1.0
        >>> kind = ParameterSpec(parameter_id='kind')
        >>> kind.categorical_value_spec.values.extend(['adam', 'sgd'])
        >>> child = kind.conditional_parameter_specs.add(parameter_spec=rate)
        >>> child.parent_categorical_values.values.append('sgd')
        >>> space = PlainSpace([kind])
        >>> decisions = space.decisions({'kind': 'sgd', 'rate': 0.01})
        >>> decisions
        {'kind': 1, 'kind[=1/2].rate': 0.01}
        >>> space.parameters(decisions)
        {'kind': 'sgd', 'rate': 0.01}
    """

    def __init__(self, parameters: Sequence[ParameterSpec]) -> None:
        """Converts the parameters; raises ValueError if they are no search space."""
        if not parameters:
            raise ValueError('the search space has no parameters')
        if _count(parameters) > _MAX_POINTS:
            raise ValueError(f'at most {_MAX_POINTS} decisions, conditional ones included')
        self.spec: pg.DNASpec = pg.geno.space(self._points(parameters))
        self._parameters = _described(parameters, self.spec)

    def decisions(self, parameters: Mapping[str, Value]) -> Decisions:
        """Reads the parameters of a trial; raises ValueError if they are not in the space."""
        decisions: Decisions = {}
        for each in self._parameters:
            each.read(parameters, decisions)
        return decisions

    def parameters(self, decisions: Decisions) -> dict[str, Value]:
        """Writes decisions as parameters of a trial."""
        parameters: dict[str, Value] = {}
        for each in self._parameters:
            each.write(decisions, parameters)
        return parameters

    def _points(self, parameters: Sequence[ParameterSpec]) -> list[DecisionPoint]:
        _require_different([''], *map(_names, parameters))
        return list(map(self._point, parameters))

    def _point(self, parameter: ParameterSpec) -> DecisionPoint:
        location = pg.KeyPath([parameter.parameter_id])
        values = _values(parameter)
        if values is None:
            return _range(parameter, location)
        candidates = [
            pg.geno.space(self._points(list(_opened(parameter, value)))) for value in values
        ]
        return pg.geno.oneof(candidates, literal_values=list(values), location=location)


@dataclasses.dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    id: str
    bounds: tuple[float, float]  # The ends of a range.
    is_integer: bool
    values: Mapping[Value, int]  # The candidates of a choice; empty for a range.
    children: Sequence[Sequence['_Parameter']]

    def read(self, parameters: Mapping[str, Value], decisions: Decisions) -> None:
        value = parameters.get(self.name)
        if value is None:
            raise ValueError(f'no value for {self.name}')
        if self.values:
            index = self.values.get(value)
            if index is None:
                raise ValueError(f'{self.name} cannot be {value!r}')
            decisions[self.id] = index
            for child in self.children[index]:
                child.read(parameters, decisions)
            return
        number = math.nan if isinstance(value, str) else value
        is_valid = number.is_integer() if self.is_integer else True
        if not (self.bounds[0] <= number <= self.bounds[1] and is_valid):
            raise ValueError(f'{self.name} cannot be {value!r}')
        decisions[self.id] = int(number) if self.is_integer else number

    def write(self, decisions: Decisions, parameters: dict[str, Value]) -> None:
        decision = decisions[self.id]
        if not self.values:
            parameters[self.name] = float(decision)
            return
        parameters[self.name] = list(self.values)[int(decision)]
        for child in self.children[int(decision)]:
            child.write(decisions, parameters)


def _count(parameters: Iterable[ParameterSpec]) -> int:
    """Counts decision points without building any: children multiply by the values they have."""
    count = 0
    for parameter in parameters:
        values = _values(parameter) or ()
        count += 1
        for child in parameter.conditional_parameter_specs:
            times = len({*values} & {*_parent_values(child)}) or 1
            count += times * _count([child.parameter_spec])
    return count


def _names(parameter: ParameterSpec) -> set[str]:
    """The names of a parameter and of all below it; ValueError if one below has its own."""
    below = [_names(each.parameter_spec) for each in parameter.conditional_parameter_specs]
    inside = set().union(*below)
    _require_different([parameter.parameter_id], inside)
    return {parameter.parameter_id, *inside}


def _require_different(*groups: Collection[str]) -> None:
    """Raises ValueError if a name is in two groups: a trial has one value for each name."""
    counts = Counter(name for group in groups for name in group)
    if same := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f'parameters need different names: {", ".join(same)[:200]}')


def _described(parameters: Iterable[ParameterSpec], spec: pg.DNASpec) -> list[_Parameter]:
    found = []
    for parameter, point in zip(parameters, spec.elements, strict=True):
        values = _values(parameter) or ()
        children = [
            _described(_opened(parameter, value), candidate)
            for value, candidate in zip(values, point.candidates if values else (), strict=True)
        ]
        bounds = (0.0, 0.0) if values else (point.min_value, point.max_value)
        indices = {value: index for index, value in enumerate(values)}
        is_integer = isinstance(point, IntPoint)
        id_ = point.id.path
        found.append(_Parameter(parameter.parameter_id, id_, bounds, is_integer, indices, children))
    return found


def _values(parameter: ParameterSpec) -> tuple[Value, ...] | None:
    """The values of a choice; None for a range. Raises ValueError if there are none."""
    name = parameter.parameter_id
    kind = parameter.WhichOneof('parameter_value_spec')
    if kind in ('categorical_value_spec', 'discrete_value_spec'):
        values = tuple(getattr(parameter, kind).values)
        if not values or len({*values}) < len(values):
            raise ValueError(f'{name}: expected values, each of them once')
        if kind == 'discrete_value_spec' and not all(map(math.isfinite, values)):
            raise ValueError(f'{name}: expected finite numbers')
        return values if kind == 'categorical_value_spec' else tuple(sorted(values))
    if kind is None:
        raise ValueError(f'{name}: it is neither DOUBLE, INTEGER, DISCRETE nor CATEGORICAL')
    low, high = getattr(parameter, kind).min_value, getattr(parameter, kind).max_value
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f'{name}: expected finite bounds, the lower one first: {low}, {high}')
    if low == high:
        return (float(low),)
    if not parameter.conditional_parameter_specs:
        return None
    if kind == 'double_value_spec' or high - low >= _MAX_INTEGERS:
        raise ValueError(f'{name}: a parameter with children has at most {_MAX_INTEGERS} values')
    return tuple(map(float, range(low, high + 1)))


def _range(parameter: ParameterSpec, location: pg.KeyPath) -> pg.geno.Float:
    kind = parameter.WhichOneof('parameter_value_spec')
    low, high = getattr(parameter, kind).min_value, getattr(parameter, kind).max_value
    scale = _SCALES.get(parameter.scale_type)
    if scale is not None and low <= 0:
        raise ValueError(f'{parameter.parameter_id}: a logarithmic range starts above 0: {low}')
    if kind == 'integer_value_spec':
        if max(abs(low), abs(high)) > _MAX_INTEGER:
            raise ValueError(f'{parameter.parameter_id}: at most 2**53 in size: {low}, {high}')
        return IntPoint(float(low), float(high), scale, location=location)
    return pg.geno.floatv(low, high, scale, location=location)


def _opened(parameter: ParameterSpec, value: Value) -> Iterable[ParameterSpec]:
    """The children that a parameter has with a value."""
    for child in parameter.conditional_parameter_specs:
        if value in _parent_values(child):
            yield child.parameter_spec


def _parent_values(child: Conditional) -> Sequence[Value]:
    kind = child.WhichOneof('parent_value_condition')
    return () if kind is None else getattr(child, kind).values
