"""Regularized evolution."""

import operator
from collections.abc import Sequence
from typing import Literal

import pyglove as pg

from paxtune.algorithms.base import Algorithm, PastTrial, Request, Suggestion
from paxtune.algorithms.quasi_random import spread_open
from paxtune.algorithms.sampling import draw_open, mutate, num_changeable
from paxtune.pareto import crowding, ranks
from trainer.errors import UserError

_MAX_TRIES = 100


class RegularizedEvolution(Algorithm):
    """Aging evolution with tournaments (Real et al. 2019).

    The first trials are random, or evenly spread. From then on, the best of a few trials that are
    drawn from the youngest ones that completed becomes the parent; its child differs in exactly one
    decision.
    Trials that were stopped early count with the reward they had; infeasible ones do not count.
    With several rewards, better is who stands on a better Pareto front of the population, and, of
    one front, who stands where it is less crowded (Deb et al. 2002).

    Attributes:
        population_size: how many trials, the youngest ones, are the population.
        tournament_size: how many of them are drawn to find a parent.
        step: how far a number moves when it changes: a standard deviation, as a share of the range
            on its scale. None where it is drawn anew.
        first: how the trials are drawn that come before there is a population.
    """

    population_size: int = 50
    tournament_size: int = 10
    step: float | None = None
    first: Literal['random', 'quasi_random'] = 'random'

    def check(self) -> None:
        if not 1 <= self.tournament_size <= self.population_size:
            raise ValueError(
                f'tournament_size ({self.tournament_size}) must lie between 1 and '
                f'population_size ({self.population_size})'
            )
        if self.step is not None and self.step <= 0.0:
            raise ValueError(f'step must be greater than 0: {self.step}')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        if not num_objectives:
            raise UserError('RegularizedEvolution needs a reward, to know the better trials by.')

    def suggest(self, request: Request) -> Suggestion:
        rng = request.rng()
        completed = [trial for trial in request.history if trial.scores]
        population = completed[-self.population_size :]
        grown = len(population) == self.population_size
        if grown and num_changeable(request.spec, population[0].decisions):
            fitness = _fitness(population)
            for _ in range(_MAX_TRIES):
                drawn = rng.sample(range(len(population)), self.tournament_size)
                # Of equals the oldest wins, in whatever order they were drawn.
                parent = population[max(drawn, key=lambda index: (fitness[index], -index))]
                child = mutate(request.spec, parent.decisions, rng, self.step)
                if request.is_open(child):
                    return Suggestion(child, parent.id if parent.id > 0 else None)
        # The population is small, or all around it was tried.
        spread = self.first == 'quasi_random' and not grown
        return Suggestion(spread_open(request) if spread else draw_open(request, rng))


def _fitness(population: Sequence[PastTrial]) -> list[tuple[float, ...]]:
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
