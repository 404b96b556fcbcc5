import random
from collections.abc import Sequence
from typing import Literal

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.evolution.crossover import Crossover
from paxtune.algorithms.evolution.mutations import ChangeOneDecision, Mutation
from paxtune.algorithms.model_based import draw_initial
from paxtune.algorithms.quasi_random import draw_quasi_random
from paxtune.objectives.pareto import crowded_fitness
from trainer.symbolic.component import require_share

_MAX_TRIES = 100


class RegularizedEvolution(Algorithm):
    """Aging evolution with tournaments (Real et al. 2019).

    The first trials are random or quasi-random. After them the population consists of the
    youngest completed trials. The winner of a tournament is the parent; the child differs in
    exactly one decision, or by another `mutation`. With a `crossover`, some children have a second
    parent, drawn like the first, and are mutated afterwards.

    Trials that were stopped early count with their last reward; infeasible ones do not count.
    With several rewards, trials are compared by Pareto front, then by crowding distance (Deb et
    al. 2002).

    Attributes:
        population_size: number of trials in the population.
        tournament_size: number of trials in a tournament.
        first: distribution of the trials before the population is full. With known values, these
            are the first trials of a model.
        mutation: mutation of children.
        crossover: crossover of two parents; None for a single parent.
        crossover_rate: fraction of the children with two parents, from 0 to 1.
    """

    names_parents = True
    uses_prior = True

    population_size: int = 50
    tournament_size: int = 10
    first: Literal['random', 'quasi_random'] = 'random'
    mutation: Mutation = ChangeOneDecision()
    crossover: Crossover | None = None
    crossover_rate: float = 0.5

    def check(self) -> None:
        if not 1 <= self.tournament_size <= self.population_size:
            raise ValueError(
                f'tournament_size ({self.tournament_size}) must lie between 1 and '
                f'population_size ({self.population_size})'
            )
        require_share(self, 'crossover_rate')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        self._require_reward(num_objectives)
        self.mutation.check_space(spec)
        if self.crossover is not None:
            self.crossover.check_space(spec)

    def suggest(self, context: SuggestionContext) -> Suggestion:
        rng = context.rng()
        completed = [trial for trial in context.observations if trial.scores]
        population = completed[-self.population_size :]
        is_full = len(population) == self.population_size
        fitness = _fitness(population) if is_full else []
        for _ in range(_MAX_TRIES if is_full else 0):
            parent = self._winner(population, fitness, rng)
            origin = parent.decisions
            if self.crossover is not None and rng.random() < self.crossover_rate:
                other = self._winner(population, fitness, rng)
                origin = self.crossover.cross(context.spec, origin, other.decisions, rng)
            child = self.mutation.mutate(context.spec, origin, rng)
            if child is not None and context.is_eligible(child):
                return Suggestion(child, parent.id if parent.id > 0 else None)
        if context.prior and not is_full:
            return Suggestion(draw_initial(context, FlatSpace(context.spec)))
        # The population is not full, or all drawn children were tried.
        spread = self.first == 'quasi_random' and not is_full
        return Suggestion(draw_quasi_random(context) if spread else draw_eligible(context, rng))

    def _winner(
        self,
        population: Sequence[Observation],
        fitness: Sequence[tuple[float, ...]],
        rng: random.Random,
    ) -> Observation:
        drawn = rng.sample(range(len(population)), self.tournament_size)
        # The oldest wins a tie, independent of the order of draws.
        return population[max(drawn, key=lambda index: (fitness[index], -index))]


def _fitness(population: Sequence[Observation]) -> Sequence[tuple[float, ...]]:
    points = [trial.scores for trial in population]
    return points if len(points[0]) == 1 else crowded_fitness(points)
