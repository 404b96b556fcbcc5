"""Searches of several objectives: ours, Optuna's and Ax's, each in its own environment."""

from collections.abc import Mapping
from typing import Any

from benchmarks.search.fronts import FrontProblem
from benchmarks.search.methods import Searcher, own_algorithm
from benchmarks.search.problems import Value

_MANY = 10_000  # Trials; a run ends earlier.


class _Ours:
    """A run of one of our algorithms in a study in memory, with the calls of users."""

    def __init__(self, algorithm: Any, problem: FrontProblem, seed: int) -> None:
        import paxtune
        from benchmarks.search import ours

        names = [f'f{i}' for i in range(problem.num_objectives)]
        objectives = paxtune.Objectives([paxtune.MetricReward('minimize', name) for name in names])
        search = paxtune.Search(objectives, paxtune.Budget(_MANY), algorithm, seed=seed)
        self._study = paxtune.open_study(None, ours.space(problem), search=search)
        self._names, self._values_of = names, lambda by_id: ours.values_of(problem, by_id)
        self._trial: Any = None

    def ask(self) -> Mapping[str, Value]:
        self._trial = self._study.ask()
        return self._values_of(self._trial.view.by_id)

    def tell(self, value: Any) -> None:
        if value is None:
            self._study.tell(self._trial, infeasible='infeasible')
        else:
            self._study.tell(self._trial, dict(zip(self._names, value, strict=True)))

    def add(self, values: Mapping[str, Value], value: Any) -> None:
        """Adds a trial that the algorithm has not suggested."""
        raise NotImplementedError


def _optuna(name: str, problem: FrontProblem, seed: int) -> Searcher:
    import optuna

    from benchmarks.search import optuna_samplers

    made = {'optuna_gp': optuna.samplers.GPSampler, 'optuna_nsga2': optuna.samplers.NSGAIISampler}
    sampler: Any = made[name](seed=seed)
    found = optuna_samplers.Study(sampler, problem)
    directions: Any = ['minimize'] * problem.num_objectives
    found.study = optuna.create_study(sampler=sampler, directions=directions)
    return found


def _ax(problem: FrontProblem, seed: int) -> Searcher:
    from benchmarks.search import ax_search

    names = [f'f{i}' for i in range(problem.num_objectives)]

    class Several(ax_search.Study):
        """The client with several objectives, and no thresholds."""

        def __init__(self) -> None:
            super().__init__(problem, seed)
            objective = ', '.join(f'-{name}' for name in names)
            self._client.configure_optimization(objective=objective)

        def tell(self, value: Any) -> None:
            if value is None:
                self._client.mark_trial_failed(self._index)
            else:
                data = dict(zip(names, value, strict=True))
                self._client.complete_trial(self._index, raw_data=data)

    return Several()


def make(name: str, problem: FrontProblem, seed: int) -> Searcher:
    """A run of the method with that name, its settings as they come."""
    if name == 'ax':
        return _ax(problem, seed)
    if name.startswith('optuna_'):
        return _optuna(name, problem, seed)
    return _Ours(own_algorithm(name), problem, seed)
