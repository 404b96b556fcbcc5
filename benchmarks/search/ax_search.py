"""Ax's client with its default generation strategy. This runs in its own environment.

Ordered numbers are an ordered choice. Conditions are `dependent_parameters` of choices.
An infeasible trial is marked as failed.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

from benchmarks.search.methods import Searcher
from benchmarks.search.problems import Parameter, Problem, Value, opened

logging.disable(logging.ERROR)


def _parameter(problem: Problem, parameter: Parameter) -> Any:
    name, kind = parameter.name, parameter.kind
    if kind in ('number', 'integer'):
        type_ = 'float' if kind == 'number' else 'int'
        scaling = 'log' if parameter.log else 'linear'
        bounds = parameter.low, parameter.high
        return RangeParameterConfig(name, bounds, parameter_type=type_, scaling=scaling)
    opens: dict[str, list[str]] = {}
    for each in problem.parameters:
        if each.condition is not None and each.condition[0] == name:
            opens.setdefault(each.condition[1], []).append(each.name)
    return ChoiceParameterConfig(
        name,
        list(parameter.values),
        parameter_type='int' if kind == 'ordered' else 'str',
        is_ordered=kind == 'ordered',
        dependent_parameters=opens or None,
    )


class Study:
    """A run of the client."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem = problem
        self._client: Any = Client(random_seed=seed)
        parameters = [_parameter(problem, each) for each in problem.parameters]
        self._client.configure_experiment(parameters=parameters)
        self._client.configure_optimization(objective='-loss')

    def ask(self) -> Mapping[str, Value]:
        ((self._index, suggested),) = self._client.get_next_trials(max_trials=1).items()
        values: dict[str, Value] = {}
        for each in opened(self._problem.parameters, values):
            values[each.name] = suggested[each.name]
        return values

    def tell(self, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            self._client.mark_trial_failed(self._index)
        else:
            self._client.complete_trial(self._index, raw_data={'loss': value})

    def add(self, values: Mapping[str, Value], value: float | None) -> None:
        """Adds a trial that Ax has not suggested."""
        raise NotImplementedError


def make(name: str, problem: Problem, seed: int) -> Searcher:
    """A run of the client."""
    return Study(problem, seed)
