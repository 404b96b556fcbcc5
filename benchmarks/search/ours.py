"""Algorithms of paxtune, each in a study that is asked for one trial after another."""

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pyglove as pg

import paxtune
from benchmarks.search.methods import Refused, Searcher, own_algorithm, without_suffix
from benchmarks.search.problems import Parameter, Problem, Value
from paxtune.search_space.decisions import Decisions, decide
from paxtune.storage.open_study import open_plan
from paxtune.study.known_values import known_values
from paxtune.study.plan import SearchPlan
from paxtune.study.running_trial import RunningTrial
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv
from trainer.symbolic.usual_values import UsualValue

_MANY = 10_000  # Trials; a run ends earlier.


def space(problem: Problem) -> Any:
    """The decisions of a problem, as they would stand in an experiment."""
    return _group(problem, None)


def _group(problem: Problem, condition: tuple[str, str] | None) -> Any:
    parts = [each for each in problem.parameters if each.condition == condition]
    return pg.Dict({each.name: _decision(problem, each) for each in parts})


def _decision(problem: Problem, parameter: Parameter) -> Any:
    scale = 'log' if parameter.log else 'linear'
    if parameter.kind == 'number':
        return pg.floatv(parameter.low, parameter.high, scale)
    if parameter.kind == 'integer':
        return intv(int(parameter.low), int(parameter.high), scale)
    owners = [each.condition for each in problem.parameters]
    candidates = []
    for value in parameter.values:
        condition = (parameter.name, str(value))
        candidates.append(_group(problem, condition) if condition in owners else value)
    return pg.oneof(candidates)


def values_of(problem: Problem, decisions: Decisions) -> dict[str, Value]:
    """Decisions by the names of the parameters: the last part of each id."""
    by_name = {id_.rpartition('.')[2]: value for id_, value in decisions.items()}
    return {
        each.name: each.values[int(by_name[each.name])] if each.values else by_name[each.name]
        for each in problem.parameters
        if each.name in by_name
    }


def decisions_of(problem: Problem, spec: pg.DNASpec, values: Mapping[str, Value]) -> Decisions:
    """The inverse of `values_of`."""
    parameters = {each.name: each for each in problem.parameters}

    def choose(point: Any) -> Any:
        name = point.id.path.rpartition('.')[2]
        candidates = parameters[name].values
        return [candidates.index(values[name])] if candidates else values[name]

    return decide(spec, choose)


class Study:
    """A run of an algorithm in a study in memory, with the calls of users."""

    def __init__(
        self,
        algorithm: Any,
        problem: Problem,
        seed: int,
        earlier: Sequence[paxtune.Study] = (),
    ) -> None:
        """Begins a run, which learns from earlier studies.

        Raises:
            Refused: the algorithm cannot search the problem.
        """
        self._problem = problem
        self._running: deque[RunningTrial] = deque()
        reward = paxtune.MetricReward('minimize', 'loss')
        search = paxtune.Search(
            reward, paxtune.Budget(_MANY), algorithm, seed=seed, prior={} if problem.known else None
        )
        named = {
            name: UsualValue(each.value, each.low, each.high, problem.name)
            for name, each in problem.known.items()
        }
        try:
            plan = SearchPlan.compile(space(problem), search, {})
            known = known_values(plan.space, search, named=named)
            self.study = open_plan(None, dataclasses.replace(plan, known=known), priors=earlier)
        except UserError as error:
            raise Refused(str(error)) from error

    def ask(self) -> Mapping[str, Value]:
        trial = self.study.ask()
        assert trial is not None
        self._running.append(trial)
        return values_of(self._problem, trial.view.by_id)

    def tell(self, value: float | None) -> None:
        trial = self._running.popleft()
        if value is None:
            self.study.tell(trial, infeasible='infeasible')
        else:
            self.study.tell(trial, {'loss': value})

    def add(self, values: Mapping[str, Value], value: float | None) -> None:
        """Adds a trial that the algorithm has not suggested."""
        spec = self.study.space.spec
        self._running.append(self.study.start(decisions_of(self._problem, spec, values), {}))
        self.tell(value)


def twin(problem: Problem, others: Sequence[str]) -> str | None:
    """The method that the default selects on a problem; None where `others` lack it."""
    chosen = own_algorithm('default').resolved(pg.dna_spec(space(problem)), 1)
    return next((name for name in others if pg.eq(own_algorithm(name), chosen)), None)


def make(name: str, problem: Problem, seed: int) -> Searcher:
    """A run of the algorithm with that name, its settings as they come."""
    return Study(own_algorithm(without_suffix(name)), problem, seed)
