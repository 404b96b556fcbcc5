"""Regularized evolution."""

import random

from paxtune.algorithms.base import Algorithm, PastTrial, Request, Suggestion
from paxtune.algorithms.sampling import draw_unseen, mutate

_MAX_TRIES = 100


class RegularizedEvolution(Algorithm):
    """Aging evolution with tournaments (Real et al. 2019).

    The first trials are random. From then on, the best of a few trials that are drawn from the
    youngest ones that completed becomes the parent; its child differs in exactly one decision.
    Trials that were stopped early count with the reward they had; infeasible ones do not count.

    Attributes:
        population_size: how many trials, the youngest ones, are the population.
        tournament_size: how many of them are drawn to find a parent.
    """

    population_size: int = 50
    tournament_size: int = 10

    def check(self) -> None:
        if not 1 <= self.tournament_size <= self.population_size:
            raise ValueError(
                f'tournament_size ({self.tournament_size}) must lie between 1 and '
                f'population_size ({self.population_size})'
            )

    def suggest(self, request: Request) -> Suggestion:
        rng = request.rng()
        completed = [trial for trial in request.history if trial.score is not None]
        if len(completed) >= self.population_size:
            for _ in range(_MAX_TRIES):
                parent = self._win_tournament(completed[-self.population_size :], rng)
                child = mutate(request.spec, parent.decisions, rng)
                if not request.seen(child):
                    return Suggestion(child, parent.id)
        # The population is small, or all around it was tried.
        return Suggestion(draw_unseen(request, rng))

    def _win_tournament(self, population: list[PastTrial], rng: random.Random) -> PastTrial:
        drawn = rng.sample(population, self.tournament_size)
        # Of equals the oldest wins, in whatever order they were drawn.
        return max(drawn, key=lambda trial: (trial.score, -trial.id))
