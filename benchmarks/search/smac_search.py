"""SMAC's facade for hyperparameters, its settings as they come. This runs in its own environment.

It must know how many trials there will be: a quarter of them are its initial design. It fits its
forest anew after each eighth trial. Conditions are those of ConfigSpace. An infeasible trial is
reported as crashed. Its cost is the largest so far, since the forest cannot take the default, which
is infinite. It is reported once there is such a cost.
"""

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import ConfigSpace
from smac import HyperparameterOptimizationFacade, Scenario
from smac.runhistory import StatusType, TrialValue

from benchmarks.search.methods import METHODS, Searcher
from benchmarks.search.problems import Parameter, Problem, Value

_PLAIN = {'int': int, 'int64': int, 'float': float, 'float64': float, 'str': str, 'str_': str}


def _parameter(parameter: Parameter) -> Any:
    name, bounds = parameter.name, (parameter.low, parameter.high)
    if parameter.kind == 'number':
        return ConfigSpace.Float(name, bounds, log=parameter.log)
    if parameter.kind == 'integer':
        return ConfigSpace.Integer(name, (int(bounds[0]), int(bounds[1])), log=parameter.log)
    is_ordered = parameter.kind == 'ordered'
    return ConfigSpace.Categorical(name, list(parameter.values), ordered=is_ordered)


def space(problem: Problem, seed: int) -> Any:
    """The problem as ConfigSpace has it."""
    made = ConfigSpace.ConfigurationSpace(seed=seed)
    by_name = {each.name: _parameter(each) for each in problem.parameters}
    made.add(list(by_name.values()))
    for each in problem.parameters:
        if each.condition is not None:
            owner, value = each.condition
            made.add(ConfigSpace.EqualsCondition(by_name[each.name], by_name[owner], value))
    return made


class Study:
    """A run of the facade."""

    def __init__(self, problem: Problem, trials: int, seed: int) -> None:
        folder = tempfile.mkdtemp(prefix='smac')
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        scenario = Scenario(
            space(problem, seed),
            n_trials=trials,
            deterministic=True,
            seed=seed,
            output_directory=folder,
        )
        # The function is not called: trials are asked for.
        self._facade: Any = HyperparameterOptimizationFacade(
            scenario, lambda config, seed=0: 0.0, logging_level=False, overwrite=True
        )
        self._crashed: list[Any] = []
        self._worst: float | None = None

    def ask(self) -> Mapping[str, Value]:
        self._info = self._facade.ask()
        config = dict(self._info.config)
        return {name: _PLAIN[type(value).__name__](value) for name, value in config.items()}

    def tell(self, value: float | None) -> None:
        if value is None:
            self._crashed.append(self._info)
        else:
            self._worst = value if self._worst is None else max(value, self._worst)
            self._facade.tell(self._info, TrialValue(cost=value), save=False)
        if self._worst is not None:
            for info in self._crashed:
                crash = TrialValue(cost=self._worst, status=StatusType.CRASHED)
                self._facade.tell(info, crash, save=False)
            self._crashed.clear()

    def add(self, values: Mapping[str, Value], value: float | None) -> None:
        """Adds a trial that SMAC has not suggested."""
        raise NotImplementedError


def make(name: str, problem: Problem, seed: int) -> Searcher:
    """A run of the facade."""
    trials = next(each.trials for each in METHODS if each.name == name)
    return Study(problem, trials, seed)
