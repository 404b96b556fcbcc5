"""HEBO, its settings as they come. This runs in its own environment.

It has no conditions. An infeasible trial is reported with a loss of infinity, which HEBO leaves
out. Losses are in single precision there.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from hebo.design_space.design_space import DesignSpace
from hebo.optimizers.hebo import HEBO

from benchmarks.search.methods import Refused, Searcher
from benchmarks.search.problems import Parameter, Problem, Value


def _parameter(parameter: Parameter) -> dict[str, Any]:
    low, high = parameter.low, parameter.high
    if parameter.kind == 'category':
        return {'name': parameter.name, 'type': 'cat', 'categories': list(parameter.values)}
    if parameter.kind == 'ordered':  # The place, as Optuna has it.
        return {'name': parameter.name, 'type': 'int', 'lb': 0, 'ub': len(parameter.values) - 1}
    if parameter.kind == 'integer':
        kind, low, high = 'pow_int' if parameter.log else 'int', int(low), int(high)
    else:
        kind = 'pow' if parameter.log else 'num'
    return {'name': parameter.name, 'type': kind, 'lb': low, 'ub': high}


class Study:
    """A run of HEBO."""

    def __init__(self, problem: Problem, seed: int) -> None:
        """Begins a run.

        Raises:
            Refused: the problem is conditional.
        """
        if problem.is_conditional:
            raise Refused('HEBO has no conditional spaces.')
        np.random.seed(seed)  # HEBO and pymoo draw from the generators of the process.
        torch.manual_seed(seed)
        self._problem = problem
        design = DesignSpace().parse([_parameter(each) for each in problem.parameters])
        self._optimizer: Any = HEBO(design, scramble_seed=seed)

    def ask(self) -> Mapping[str, Value]:
        self._row = self._optimizer.suggest(n_suggestions=1)
        return {each.name: _value(each, self._row) for each in self._problem.parameters}

    def tell(self, value: float | None) -> None:
        self._optimizer.observe(self._row, np.array([[np.inf if value is None else value]]))

    def add(self, values: Mapping[str, Value], value: float | None) -> None:
        """Adds a trial that HEBO has not suggested."""
        raise NotImplementedError


def _value(parameter: Parameter, row: pd.DataFrame) -> Value:
    value = row[parameter.name].iloc[0]
    if parameter.kind == 'category':
        return str(value)
    if parameter.kind == 'ordered':
        return parameter.values[int(value)]
    # Logarithms and back may leave the range by a rounding.
    inside = min(max(float(value), parameter.low), parameter.high)
    return int(inside) if parameter.kind == 'integer' else inside


def make(name: str, problem: Problem, seed: int) -> Searcher:
    """A run of HEBO."""
    return Study(problem, seed)
