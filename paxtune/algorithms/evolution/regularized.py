"""Regularized evolution."""

import operator
import random
from collections.abc import Sequence
from typing import Literal

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.evolution.crossover import Crossover
from paxtune.algorithms.evolution.mutations import ChangeOneDecision, Mutation
from paxtune.algorithms.quasi_random import draw_quasi_random
from paxtune.objectives.pareto import crowding, ranks
from trainer.symbolic.errors import UserError

_MAX_TRIES = 100


class RegularizedEvolution(Algorithm):
    """Aging evolution with tournaments (Real et al. 2019).

    The first trials are random, or evenly spread. From then on, the best of a few trials that are
    drawn from the youngest ones that completed becomes the parent; its child differs in exactly one
    decision, or in what another `mutation` changes. With a `crossover`, some children have a second
    parent, drawn like the first, and mutate then.

    Trials that were stopped early count with the reward they had; infeasible ones do not count.
    With several rewards, better is who stands on a better Pareto front of the population, and, of
    one front, who stands where it is less crowded (Deb et al. 2002).

    Attributes:
        population_size: how many trials, the youngest ones, are the population.
        tournament_size: how many of them are drawn to find a parent.
        first: how the trials are drawn that come before there is a population.
        mutation: how a child comes to differ.
        crossover: how two parents have one child; None where all children have one parent.
        crossover_rate: how many of the children have two parents, from 0 to 1.
    """

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
        if not 0.0 <= self.crossover_rate <= 1.0:
            raise ValueError(f'crossover_rate must lie between 0 and 1: {self.crossover_rate}')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        if not num_objectives:
            raise UserError('RegularizedEvolution needs a reward, to know the better trials by.')
        self.mutation.check_space(spec)
        if self.crossover is not None:
            self.crossover.check_space(spec)

    def suggest(self, context: SuggestionContext) -> Suggestion:
        rng = context.rng()
        completed = [trial for trial in context.observations if trial.scores]
        population = completed[-self.population_size :]
        grown = len(population) == self.population_size
        fitness = _fitness(population) if grown else []
        for _ in range(_MAX_TRIES if grown else 0):
            parent = self._winner(population, fitness, rng)
            origin = parent.decisions
            if self.crossover is not None and rng.random() < self.crossover_rate:
                other = self._winner(population, fitness, rng)
                origin = self.crossover.cross(context.spec, origin, other.decisions, rng)
            child = self.mutation.mutate(context.spec, origin, rng)
            if child is not None and context.is_eligible(child):
                return Suggestion(child, parent.id if parent.id > 0 else None)
        # The population is small, or all around it was tried.
        spread = self.first == 'quasi_random' and not grown
        return Suggestion(draw_quasi_random(context) if spread else draw_eligible(context, rng))

    def _winner(
        self,
        population: Sequence[Observation],
        fitness: Sequence[tuple[float, ...]],
        rng: random.Random,
    ) -> Observation:
        drawn = rng.sample(range(len(population)), self.tournament_size)
        # Of equals the oldest wins, in whatever order they were drawn.
        return population[max(drawn, key=lambda index: (fitness[index], -index))]


def _fitness(population: Sequence[Observation]) -> list[tuple[float, ...]]:
    """What to compare trials by: the score, or the front that it stands on, then the room there."""
    points = [trial.scores for trial in population]
    if len(points[0]) == 1:
        return list(points)
    ranked = ranks(points)
    room = [0.0] * len(points)
    for rank in set(ranked):
        members = [index for index, each in enumerate(ranked) if each == rank]
        distances = crowding([points[index] for index in members])
        for index, distance in zip(members, distances, strict=True):
            room[index] = distance
    return list(zip(map(operator.neg, ranked), room, strict=True))
