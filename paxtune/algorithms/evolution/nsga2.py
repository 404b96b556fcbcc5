import random
from collections.abc import Sequence

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import changeable_points
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.evolution.crossover import Crossover, UniformCrossover
from paxtune.algorithms.evolution.mutations import ChangeOneDecision, Mutation
from paxtune.algorithms.model_based import draw_initial
from paxtune.algorithms.quasi_random import draw_quasi_random
from paxtune.algorithms.ranking import survivors
from paxtune.objectives.pareto import Fitness
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.component import require_at_least, require_share

_MAX_TRIES = 100


class NSGA2(Algorithm):
    """NSGA-II: an elitist genetic algorithm for one or several objectives.

    The first trials are quasi-random, half of them about known values. After them the population
    consists of the best completed trials: whole Pareto fronts and, of the last front, the least
    crowded trials. Each of two parents wins a binary tournament. Crossover mixes their decisions,
    and about one mutates. A trial counts as soon as it has ended (steady state), so that any number
    may run at once. Infeasible trials do not count; trials of earlier studies do.

    K. Deb, A. Pratap, S. Agarwal, T. Meyarivan, "A fast and elitist multiobjective genetic
    algorithm: NSGA-II", IEEE Transactions on Evolutionary Computation 6(2), 2002. J. J. Durillo,
    A. J. Nebro, F. Luna, E. Alba, "On the effect of the steady-state selection scheme in
    multi-objective genetic algorithms", EMO 2009.

    Attributes:
        population_size: number of trials that have children.
        crossover_rate: fraction of the children with two parents, from 0 to 1.
        mutation: mutation of children; about one happens to each.
        crossover: crossover of two parents.
    """

    names_parents = True
    uses_prior = True

    population_size: int = 20
    crossover_rate: float = 0.9
    mutation: Mutation = ChangeOneDecision(step=0.1)
    crossover: Crossover = UniformCrossover()

    def check(self) -> None:
        require_at_least(self, 2, 'population_size')
        require_share(self, 'crossover_rate')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        self._require_reward(num_objectives)
        self.mutation.check_space(spec)
        self.crossover.check_space(spec)

    def suggest(self, context: SuggestionContext) -> Suggestion:
        completed = [trial for trial in context.observations if trial.scores]
        if len(completed) < self.population_size:
            if context.prior:
                return Suggestion(draw_initial(context, FlatSpace(context.spec)))
            return Suggestion(draw_quasi_random(context))
        rng = context.rng()
        population, fitness = survivors(completed, self.population_size, context.memo)
        for _ in range(_MAX_TRIES):
            parents = [_winner(population, fitness, rng) for _ in range(2)]
            child = self._child(context.spec, parents, rng)
            if context.is_eligible(child):
                return Suggestion(child, next((each.id for each in parents if each.id > 0), None))
        return Suggestion(draw_quasi_random(context))

    def _child(
        self, spec: pg.DNASpec, parents: Sequence[Observation], rng: random.Random
    ) -> Decisions:
        child = parents[0].decisions
        if rng.random() < self.crossover_rate:
            child = self.crossover.cross(spec, child, parents[1].decisions, rng)
        count = len(changeable_points(spec, child))
        for _ in range(sum(rng.random() * count < 1.0 for _ in range(count))):
            child = self.mutation.mutate(spec, child, rng) or child
        return child


def _winner(
    population: Sequence[Observation], fitness: Sequence[Fitness], rng: random.Random
) -> Observation:
    """Winner of a binary tournament; the first one drawn wins a tie."""
    drawn = rng.sample(range(len(population)), 2)
    return population[max(drawn, key=lambda index: fitness[index])]
