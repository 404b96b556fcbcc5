"""CMA-ES."""

import random
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.cma_es.distribution import Adapting, Told
from paxtune.algorithms.encoding.sampling import draw_eligible
from trainer.symbolic.errors import UserError

_MAX_TRIES = 100
_MAX_COLUMNS = 300
_MOST_DOUBLINGS = 5

_Generation: TypeAlias = tuple[int, int]
"""The number of a run, and of a generation in it."""


class CMAES(Algorithm):
    """A normal distribution over the space moves, stretches and shrinks towards the better trials.

    Trials are drawn from it, in generations: when as many have ended as the population holds, the
    distribution is adapted; until then, whoever asks is given another draw from it. Infeasible
    trials count as the worst of their generation. When the distribution has become narrow, or draws
    nothing new, another run begins elsewhere with twice the population. The first run begins at
    the best trial known, of earlier studies or of those that people added, or in the middle.

    Numbers are searched on their scale. Whole numbers and choices between numbers keep a least
    chance to change, and any other choice has probabilities of its own (CatCMA with margin). What
    the other decisions do not open is drawn nevertheless, and left out of the trial.

    N. Hansen, A. Ostermeier, "Completely derandomized self-adaptation in evolution strategies",
    Evolutionary Computation 9(2), 2001. A. Auger, N. Hansen, "A restart CMA evolution strategy with
    increasing population size", CEC 2005. R. Hamano et al., "CatCMA with margin: stochastic
    optimization for continuous, integer, and categorical variables", GECCO 2025.

    Attributes:
        population_size: how many trials a generation of the first run has; None for
            4 + ⌊3 ln n⌋ with n decisions.
        step: the standard deviation at the beginning, as a share of each range; half of that where
            a good trial is known.
    """

    population_size: int | None = None
    step: float = 0.2

    def check(self) -> None:
        if self.population_size is not None and self.population_size < 4:
            raise ValueError(f'population_size must be at least 4: {self.population_size}')
        if self.step <= 0.0:
            raise ValueError(f'step must be greater than 0: {self.step}')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        if num_objectives != 1:
            raise UserError(
                f'CMAES needs one reward, and there are {num_objectives}. With several, NSGA2 and '
                'RegularizedEvolution search for the Pareto front; without any, RandomSearch, '
                'QuasiRandom and Grid can be used.'
            )
        count = Adapting.num_columns(spec)
        if count > _MAX_COLUMNS:
            raise UserError(
                f'CMAES learns how any two decisions depend on each other: {count} are too many '
                f'(at most {_MAX_COLUMNS}). RegularizedEvolution, NSGA2 and HillClimbing can '
                'search such a space.'
            )

    def suggest(self, context: SuggestionContext) -> Suggestion:
        rng = context.rng()
        if Adapting.num_columns(context.spec):
            past = _Past(context, self)
            adapting, algorithm_state = past.present()
            suggestion = _draw(adapting, algorithm_state, context, rng)
            if suggestion is None:
                adapting, algorithm_state = past.another_run()
                suggestion = _draw(adapting, algorithm_state, context, rng)
            if suggestion is not None:
                return suggestion
        return Suggestion(draw_eligible(context, rng))


def _draw(
    adapting: Adapting,
    algorithm_state: Mapping[str, str],
    context: SuggestionContext,
    rng: random.Random,
) -> Suggestion | None:
    """The next of a generation; None where the distribution gives nothing that is open."""
    for _ in range(_MAX_TRIES):
        decisions, point = adapting.draw(rng.getrandbits(32))
        if context.is_eligible(decisions):
            return Suggestion(decisions, algorithm_state={**algorithm_state, 'point': point})
    return None


class _Past:
    """What the trials of a study say of the runs so far.

    A trial's memo holds its `cma_generation` ('run.generation'), its `point`, and `told`: of which
    trials the distribution was made that it was drawn from, those of the generation before, or, in
    the first generation, the trial at which the run began. So what is told later of a trial that
    ran for long does not change what was made of the others.
    """

    def __init__(self, context: SuggestionContext, algorithm: CMAES) -> None:
        self._request, self._algorithm = context, algorithm
        self._by_id = {trial.id: trial for trial in context.observations}
        self._members: dict[_Generation, list[Observation]] = {}
        for trial in context.observations:
            if trial.id > 0 and 'cma_generation' in trial.algorithm_state:
                self._members.setdefault(_generation(trial), []).append(trial)
        self._run, self._last = max(self._members, default=(0, 0))

    def present(self) -> tuple[Adapting, Mapping[str, str]]:
        """The distribution that the next trial is drawn from, and the trial's memo."""
        if not self._members:
            return self._begin(0, self._best_known())
        generations = [(self._run, number) for number in range(self._last + 1)]
        if not all(generation in self._members for generation in generations):
            return self.another_run()  # Trials are missing.
        made_of = [_told(self._members[generation][0]) for generation in generations]
        ended = [t for t in self._members[generations[-1]] if t.state != 'pending']
        size = self._population_size(self._run)
        adapts = len(ended) >= size and any(trial.scores for trial in ended)
        if adapts:
            ended.sort(key=lambda trial: (not trial.scores, trial.id))
            made_of.append(sorted(trial.id for trial in ended[:size]))
        if not all(id_ in self._by_id for ids in made_of for id_ in ids):
            return self.another_run()
        start, *generations_told = made_of
        adapting = self._adapting(self._run, start)
        adapting.tell([[_result(self._by_id[id_]) for id_ in ids] for ids in generations_told])
        if adapts and adapting.has_converged:
            return self.another_run()
        return adapting, _memo(self._run, self._last + adapts, made_of[-1])

    def another_run(self) -> tuple[Adapting, Mapping[str, str]]:
        """A distribution at a place drawn at random."""
        return self._begin(self._run + 1, [])

    def _begin(self, run: int, start: Sequence[int]) -> tuple[Adapting, Mapping[str, str]]:
        return self._adapting(run, start), _memo(run, 0, start)

    def _adapting(self, run: int, start: Sequence[int]) -> Adapting:
        return Adapting(
            self._request.spec,
            self._population_size(run),
            self._algorithm.step / (2 if start else 1),
            self._by_id[start[0]].decisions if start else None,
            f'{self._request.seed}/{run}' if run else None,
        )

    def _population_size(self, run: int) -> int:
        first = self._algorithm.population_size or Adapting.usual_size(self._request.spec)
        return int(first * 2 ** min(run, _MOST_DOUBLINGS))

    def _best_known(self) -> list[int]:
        completed = [trial for trial in self._request.observations if trial.scores]
        return [max(completed, key=lambda trial: trial.scores).id] if completed else []


def _result(trial: Observation) -> Told:
    return Told(trial.algorithm_state['point'], trial.score if trial.scores else None)


def _memo(run: int, number: int, told: Sequence[int]) -> dict[str, str]:
    return {'cma_generation': f'{run}.{number}', 'told': ' '.join(map(str, told))}


def _generation(trial: Observation) -> _Generation:
    run, number = trial.algorithm_state['cma_generation'].split('.')
    return int(run), int(number)


def _told(trial: Observation) -> list[int]:
    return [int(each) for each in trial.algorithm_state['told'].split()]
