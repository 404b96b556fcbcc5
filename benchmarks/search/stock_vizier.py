"""Vizier's default designer as it comes with `google-vizier`, its settings as they come.

It keeps its state from one suggestion to the next, which is the kindest way to use it: the service
would make it anew each time.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.search.methods import Refused, Searcher
from benchmarks.search.problems import Parameter, Problem, Value


def statement(problem: Problem) -> Any:
    """The problem as Vizier has it."""
    from vizier import pyvizier as vz

    made = vz.ProblemStatement()
    for each in problem.parameters:
        _add(made.search_space.root, each)
    goal = vz.ObjectiveMetricGoal.MINIMIZE
    made.metric_information.append(vz.MetricInformation('value', goal=goal))
    return made


def _add(root: Any, parameter: Parameter) -> None:
    from vizier import pyvizier as vz

    scale = vz.ScaleType.LOG if parameter.log else vz.ScaleType.LINEAR
    name, low, high = parameter.name, parameter.low, parameter.high
    if parameter.kind == 'number':
        root.add_float_param(name, low, high, scale_type=scale)
    elif parameter.kind == 'integer':
        root.add_int_param(name, int(low), int(high), scale_type=scale)
    elif parameter.kind == 'ordered':
        root.add_discrete_param(name, parameter.values)
    else:
        root.add_categorical_param(name, parameter.values)


class Study:
    """A run of the designer."""

    def __init__(self, problem: Problem, seed: int) -> None:
        """Begins a run.

        Raises:
            Refused: the problem is conditional.
        """
        import jax
        from vizier._src.algorithms.designers.gp_ucb_pe import VizierGPUCBPEBandit

        if problem.is_conditional:
            raise Refused('Vizier has no algorithm for conditional spaces.')
        self._designer: Any = VizierGPUCBPEBandit(statement(problem), rng=jax.random.PRNGKey(seed))
        self._count = 0

    def ask(self) -> Mapping[str, Value]:
        (self._suggestion,) = self._designer.suggest(1)
        return self._suggestion.parameters.as_dict()

    def tell(self, value: float | None) -> None:
        self.add(self._suggestion.parameters.as_dict(), value)

    def add(self, values: Mapping[str, Value], value: float | None) -> None:
        """Adds a trial that the designer need not have suggested."""
        from vizier import algorithms as vza
        from vizier import pyvizier as vz

        self._count += 1
        trial: Any = vz.Trial(id=self._count, parameters=dict(values))
        if value is None:
            trial.complete(vz.Measurement(), infeasibility_reason='infeasible')
        else:
            trial.complete(vz.Measurement({'value': value}))
        self._designer.update(vza.CompletedTrials([trial]), vza.ActiveTrials([]))


def make(name: str, problem: Problem, seed: int) -> Searcher:
    """A run of the designer."""
    return Study(problem, seed)
