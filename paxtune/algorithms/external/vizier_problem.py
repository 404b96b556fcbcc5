"""A search space and its trials as a problem without conditions, for Vizier designers."""

import contextlib
import datetime
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyglove as pg

from paxtune.algorithms.base import Observation
from paxtune.algorithms.encoding.scaling import from_unit
from paxtune.algorithms.encoding.unit_cube import Feature, FlatSpace
from paxtune.search_space.decisions import Decisions, is_integer
from trainer.symbolic import extras

METADATA = 'metadata'
"""Key of the algorithm state that holds the metadata of a designer."""

_EXTRA = ('chex', 'equinox', 'jaxopt', 'jaxtyping', 'tensorflow_probability', 'typeguard')
"""Modules that Vizier's designers import: the extra `vizier`."""

_MIN_SINGLE, _MIN_WIDTH = 1e-37, 1e-6
_MAX_INTEGERS = 1000  # Designers enumerate them.
_START = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)  # Creation time of trial 0.


def _exceeds_single(point: pg.geno.Float) -> bool:
    """Returns True if single precision, in which designers compute, has no values for a range."""
    low, high = abs(point.min_value), abs(point.max_value)
    largest, smallest = max(low, high), min(low, high)
    is_log = point.scale in ('log', 'rlog')
    is_narrow = point.max_value - point.min_value < _MIN_WIDTH * largest
    return is_narrow or largest > 1 / _MIN_SINGLE or (smallest if is_log else largest) < _MIN_SINGLE


class FlatProblem:
    """Problem statement of a search space.

    Each decision point is a parameter. A range of floats is DOUBLE with its scale. A range of
    integers is INTEGER or, if it is logarithmic or wide, DOUBLE with rounding, because designers
    ignore scales of integers. A range that exceeds single precision goes from 0 to 1. A choice
    between numbers is DISCRETE, any other one CATEGORICAL. Constants are omitted. An inactive
    decision has the middle value, or the first candidate. Each reward is a metric to be maximized,
    `objective_0` and so on.

    Attributes:
        statement: the `vz.ProblemStatement`.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([pg.floatv(0.0, 1.0), 'none'])))
        >>> problem = FlatProblem(spec, 1)
        >>> problem.parameters({'x': 1})
        {'x': '1', 'x[=0/2]': 0.5}
        >>> problem.decisions({'x': '1', 'x[=0/2]': 0.3})
        {'x': 1}
    """

    def __init__(self, spec: pg.DNASpec, num_objectives: int) -> None:
        from vizier import pyvizier as vz

        self._space = FlatSpace(spec)
        self._features = {
            feature.id or '$': feature for feature in self._space.features if self._varies(feature)
        }
        self._in_unit = {
            feature.id
            for feature in self._features.values()
            if feature.kind == 'number' and _exceeds_single(self._space.ranges[feature.id])
        }
        self.statement = vz.ProblemStatement()
        for name, feature in self._features.items():
            self._add(self.statement.search_space.root, name, feature)
        self._metrics = [f'objective_{i}' for i in range(num_objectives)]
        for metric in self._metrics:
            goal = vz.ObjectiveMetricGoal.MAXIMIZE
            self.statement.metric_information.append(vz.MetricInformation(metric, goal=goal))

    def __len__(self) -> int:
        return len(self._features)

    def _varies(self, feature: Feature) -> bool:
        if feature.kind == 'number':
            point = self._space.ranges[feature.id]
            return bool(point.min_value < point.max_value)
        return len(feature.order) > 1

    def _add(self, root: Any, name: str, feature: Feature) -> None:
        from vizier import pyvizier as vz

        if feature.kind == 'category':
            root.add_categorical_param(name, [str(index) for index in sorted(feature.order)])
        elif feature.kind == 'ordinal':
            root.add_discrete_param(name, sorted(feature.numbers))
        else:
            point = self._space.ranges[feature.id]
            scales = {'log': vz.ScaleType.LOG, 'rlog': vz.ScaleType.REVERSE_LOG}
            scale = scales.get(point.scale, vz.ScaleType.LINEAR)
            few = point.max_value - point.min_value < _MAX_INTEGERS
            if feature.id in self._in_unit:
                root.add_float_param(name, 0.0, 1.0)
            elif is_integer(point) and few and scale == vz.ScaleType.LINEAR:
                low, high = int(point.min_value), int(point.max_value)
                root.add_int_param(name, low, high, scale_type=scale)
            else:
                margin = 0.5 if is_integer(point) else 0.0
                low, high = point.min_value - margin, point.max_value + margin
                root.add_float_param(name, low, high, scale_type=scale)

    def parameters(self, decisions: Decisions) -> dict[str, str | float]:
        """Values of all parameters, inactive ones included."""
        return {name: self._value(each, decisions) for name, each in self._features.items()}

    def _value(self, feature: Feature, decisions: Decisions) -> str | float:
        known = decisions.get(feature.id)
        if feature.id in self._in_unit:
            return 0.5 if known is None else self._space.to_unit_value(feature.id, known)
        if feature.kind == 'number':
            return from_unit(self._space.ranges[feature.id], 0.5) if known is None else known
        if feature.kind == 'category':
            return str(0 if known is None else int(known))
        middle = feature.order[len(feature.order) // 2]
        return feature.numbers[middle if known is None else int(known)]

    def decisions(self, parameters: Mapping[str, Any]) -> Decisions:
        """Decisions of the parameters {name: value} of a suggestion, without inactive ones.

        Where candidates must be distinct, a taken one is replaced by the next free one.
        """
        row = np.full(len(self._space), 0.5)
        for i, feature in enumerate(self._space.features):
            name = feature.id or '$'
            if name in self._features:
                value = float(parameters[name])
                if feature.kind == 'ordinal':
                    distances = {i: abs(feature.numbers[i] - value) for i in feature.order}
                    value = min(distances, key=distances.__getitem__)
                in_unit = feature.id in self._in_unit
                row[i] = value if in_unit else self._space.to_unit_value(feature.id, value)
        return self._space.decode(row)

    def trials(self, observations: Sequence[Observation]) -> tuple[list[Any], list[Any]]:
        """Ended and active `vz.Trial`s for `Designer.update`.

        They keep their numbers, or are counted from 1 if trials of earlier studies are among them.
        Creation times are a second apart.
        """
        first = min((trial.id for trial in observations), default=1)
        offset = min(first - 1, 0)
        ended: list[Any] = []
        active: list[Any] = []
        for trial in observations:
            made = self.trial(trial, trial.id - offset)
            (active if trial.state == 'pending' else ended).append(made)
        return ended, active

    def trial(self, trial: Observation, number: int) -> Any:
        """Converts an observation to a `vz.Trial`."""
        from vizier import pyvizier as vz

        start = _START + datetime.timedelta(seconds=number)
        made = vz.Trial(self.parameters(trial.decisions), id=number, creation_time=start)
        for namespace, key, value in json.loads(trial.algorithm_state.get(METADATA, '[]')):
            made.metadata.abs_ns(vz.Namespace.decode(namespace))[key] = value
        if trial.state == 'infeasible':
            made.complete(vz.Measurement(), infeasibility_reason='infeasible')
        elif trial.state == 'completed':
            metrics = dict(zip(self._metrics, map(float, trial.scores), strict=True))
            made.complete(vz.Measurement(metrics))
        if trial.state != 'pending':
            made.completion_time = start + datetime.timedelta(seconds=1)
        return made


def metadata_text(metadata: Any) -> str:
    """Metadata of a suggestion as JSON; values other than strings are omitted."""
    items = [(space.encode(), key, value) for space, key, value in metadata.all_items()]
    return json.dumps([item for item in items if isinstance(item[2], str)])


def require_extra(name: str) -> None:
    """Raises UserError unless all that Vizier's designers import is installed.

    Args:
        name: of the algorithm, for the message.
    """
    extras.require('vizier', f'search.algorithm: {name}', *_EXTRA)


@contextlib.contextmanager
def jax_for_designers() -> Iterator[None]:
    """Enables 64-bit floats inside the block, as Vizier's service does, and hides Vizier's
    warnings.

    The configuration of JAX is restored afterwards.
    """
    import jax

    before = dict(jax.config.values)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            with jax.enable_x64(True):
                yield
        finally:
            for name, value in jax.config.values.items():
                if name in before and before[name] is not value and before[name] != value:
                    jax.config.update(name, before[name])
