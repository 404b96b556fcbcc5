"""Samplers of Optuna, their settings as they come. This runs in the peers' environment.

A range of whole numbers is one. Ordered numbers are a range of their places, which has more
information than a choice between them. An infeasible trial is reported as one that failed. Known
values are those of the first trial.
"""

import warnings
from collections import deque
from collections.abc import Mapping
from typing import Any

import optuna

from benchmarks.search.methods import Searcher, without_suffix
from benchmarks.search.problems import Parameter, Problem, Value, opened

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.simplefilter('ignore', optuna.exceptions.ExperimentalWarning)

SAMPLERS: dict[str, Any] = {
    'optuna_tpe': optuna.samplers.TPESampler,
    'optuna_gp': optuna.samplers.GPSampler,
}


def suggested(trial: Any, parameter: Parameter) -> Value:
    """The suggestion of a trial of Optuna for a parameter."""
    name, low, high = parameter.name, parameter.low, parameter.high
    if parameter.kind == 'number':
        return trial.suggest_float(name, low, high, log=parameter.log)
    if parameter.kind == 'integer':
        return trial.suggest_int(name, int(low), int(high), log=parameter.log)
    if parameter.kind == 'ordered':
        return parameter.values[trial.suggest_int(name, 0, len(parameter.values) - 1)]
    return trial.suggest_categorical(name, parameter.values)


class Study:
    """A run of a sampler."""

    def __init__(self, sampler: Any, problem: Problem) -> None:
        self.study: Any = optuna.create_study(sampler=sampler)
        if problem.known:
            ranges = {each.name: each for each in problem.parameters}
            values = {
                name: min(max(each.value, ranges[name].low), ranges[name].high)
                for name, each in problem.known.items()
            }
            self.study.enqueue_trial(values)
        self._problem = problem
        self._running: deque[Any] = deque()

    def ask(self) -> Mapping[str, Value]:
        trial = self.study.ask()
        self._running.append(trial)
        values: dict[str, Value] = {}
        for parameter in opened(self._problem.parameters, values):
            values[parameter.name] = suggested(trial, parameter)
        return values

    def tell(self, value: float | None) -> None:
        trial = self._running.popleft()
        if value is None:
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self.study.tell(trial, value)

    def add(self, values: Mapping[str, Value], value: float | None) -> None:
        """Adds a trial that the sampler has not suggested."""
        params: dict[str, Any] = {}
        distributions = {}
        for each in self._problem.parameters:
            if each.name in values:
                is_place = each.kind == 'ordered'
                own = values[each.name]
                params[each.name] = each.values.index(own) if is_place else own
                distributions[each.name] = _distribution(each)
        states = optuna.trial.TrialState
        state = states.FAIL if value is None else states.COMPLETE
        made = optuna.trial.create_trial(
            params=params, distributions=distributions, value=value, state=state
        )
        self.study.add_trial(made)


def _distribution(parameter: Parameter) -> Any:
    low, high, log = parameter.low, parameter.high, parameter.log
    if parameter.kind == 'number':
        return optuna.distributions.FloatDistribution(low, high, log=log)
    if parameter.kind == 'integer':
        return optuna.distributions.IntDistribution(int(low), int(high), log=log)
    if parameter.kind == 'ordered':
        return optuna.distributions.IntDistribution(0, len(parameter.values) - 1)
    return optuna.distributions.CategoricalDistribution(parameter.values)


def make(name: str, problem: Problem, seed: int) -> Searcher:
    """A run of the sampler with that name."""
    return Study(SAMPLERS[without_suffix(name)](seed=seed), problem)
