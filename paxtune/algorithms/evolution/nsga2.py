"""NSGA-II."""

import random
from collections.abc import Sequence
from typing import TypeAlias

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import num_changeable
from paxtune.algorithms.evolution.crossover import Crossover, UniformCrossover
from paxtune.algorithms.evolution.mutations import ChangeOneDecision, Mutation
from paxtune.algorithms.quasi_random import draw_quasi_random
from paxtune.objectives.pareto import crowding, ranks
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.errors import UserError

_MAX_TRIES = 100

_Fitness: TypeAlias = tuple[int, float]
"""The front that a trial stands on, negated, and the room that it has there: more is better."""


class NSGA2(Algorithm):
    """A population of the best trials, spread along their Pareto front, has children by pairs.

    The first trials are spread over the space. From then on the population are the best of all
    trials that completed: those of the first fronts, and of the last of these fronts those where it
    is least crowded. Two parents win a tournament of two each; of their decisions, mixed, about one
    mutates. A trial counts as soon as it has ended (the steady state variant), so any number may
    run at the same time; infeasible ones do not count. Trials of earlier studies do.

    K. Deb, A. Pratap, S. Agarwal, T. Meyarivan, "A fast and elitist multiobjective genetic
    algorithm: NSGA-II", IEEE Transactions on Evolutionary Computation 6(2), 2002. J. J. Durillo,
    A. J. Nebro, F. Luna, E. Alba, "On the effect of the steady-state selection scheme in
    multi-objective genetic algorithms", EMO 2009.

    Attributes:
        population_size: how many trials have children.
        crossover_rate: how many of the children have two parents, from 0 to 1.
        mutation: how a child comes to differ; about one happens to each.
        crossover: how the decisions of two parents are mixed.
    """

    population_size: int = 20
    crossover_rate: float = 0.9
    mutation: Mutation = ChangeOneDecision(step=0.1)
    crossover: Crossover = UniformCrossover()

    def check(self) -> None:
        if self.population_size < 2:
            raise ValueError(f'population_size must be at least 2: {self.population_size}')
        if not 0.0 <= self.crossover_rate <= 1.0:
            raise ValueError(f'crossover_rate must lie between 0 and 1: {self.crossover_rate}')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        if not num_objectives:
            raise UserError(
                'NSGA2 needs a reward, to know the better trials by. Without one, RandomSearch, '
                'QuasiRandom and Grid can be used.'
            )
        self.mutation.check_space(spec)
        self.crossover.check_space(spec)

    def suggest(self, context: SuggestionContext) -> Suggestion:
        completed = [trial for trial in context.observations if trial.scores]
        if len(completed) < self.population_size:
            return Suggestion(draw_quasi_random(context))
        rng = context.rng()
        population, fitness = _survivors(completed, self.population_size)
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
        count = num_changeable(spec, child)
        for _ in range(sum(rng.random() * count < 1.0 for _ in range(count))):
            child = self.mutation.mutate(spec, child, rng) or child
        return child


def _survivors(
    trials: Sequence[Observation], size: int
) -> tuple[Sequence[Observation], Sequence[_Fitness]]:
    """The best trials, and their fitness among each other.

    They are found in passes over a few trials each, since the memory that ranks take grows with the
    square of their number: whom a few push out, many would.
    """
    kept, fitness = list(trials[:size]), _fitness(trials[:size])
    for start in range(size, len(trials), size):
        among = kept + list(trials[start : start + size])
        fitness = _fitness(among)
        best = sorted(range(len(among)), key=lambda index: fitness[index], reverse=True)[:size]
        kept = [among[index] for index in best]
        fitness = [fitness[index] for index in best]
    return kept, fitness


def _fitness(trials: Sequence[Observation]) -> list[_Fitness]:
    points = [trial.scores for trial in trials]
    ranked = ranks(points)
    found: list[_Fitness] = [(0, 0.0)] * len(points)
    for rank in set(ranked):
        members = [index for index, each in enumerate(ranked) if each == rank]
        room = crowding([points[index] for index in members])
        for index, each in zip(members, room, strict=True):
            found[index] = (-rank, each)
    return found


def _winner(
    population: Sequence[Observation], fitness: Sequence[_Fitness], rng: random.Random
) -> Observation:
    """Of two trials, the better one; of equals the first that was drawn."""
    drawn = rng.sample(range(len(population)), 2)
    return population[max(drawn, key=lambda index: fitness[index])]
