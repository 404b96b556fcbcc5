import random
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.cma_es.distribution import Distribution, Evaluation
from paxtune.algorithms.encoding.sampling import draw_eligible
from trainer.symbolic.component import require_above_zero, require_at_least
from trainer.symbolic.errors import UserError

_MAX_TRIES = 100
_MAX_VARIABLES = 300
_MAX_DOUBLINGS = 5

_Generation: TypeAlias = tuple[int, int]
"""Index of a run, and of a generation in it."""


class CMAES(Algorithm):
    """A normal distribution over the space moves, stretches and shrinks towards the better trials.

    Trials are drawn in generations. The distribution adapts as soon as as many trials have ended
    as the population holds; other trials of a generation are ignored. Infeasible trials rank last.
    A converged distribution, or one whose draws were all tried, is restarted elsewhere with twice
    the population. The first run starts at the best known trial (of earlier studies, or added by
    users), or in the middle.

    Numbers are searched on their scale. Integers and choices between numbers keep a minimum
    probability to change; other choices have probabilities of their own (CatCMA with margin).
    Inactive decisions are drawn, and omitted from the trial.

    N. Hansen, A. Ostermeier, "Completely derandomized self-adaptation in evolution strategies",
    Evolutionary Computation 9(2), 2001. A. Auger, N. Hansen, "A restart CMA evolution strategy with
    increasing population size", CEC 2005. R. Hamano et al., "CatCMA with margin: stochastic
    optimization for continuous, integer, and categorical variables", GECCO 2025.

    Attributes:
        population_size: number of trials in a generation of the first run; None for
            4 + ⌊3 ln n⌋ with n decisions.
        step: initial standard deviation, relative to each range; half of it at a known trial.
    """

    population_size: int | None = None
    step: float = 0.2

    def check(self) -> None:
        require_at_least(self, 4, 'population_size')
        require_above_zero(self, 'step')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        self._require_reward(num_objectives, exactly_one=True)
        count = Distribution.num_variables(spec)
        if count > _MAX_VARIABLES:
            raise UserError(
                f'CMAES models the covariance of at most {_MAX_VARIABLES} decisions; there are '
                f'{count}. Use RegularizedEvolution, NSGA2 or HillClimbing.'
            )

    def suggest(self, context: SuggestionContext) -> Suggestion:
        rng = context.rng()
        if Distribution.num_variables(context.spec):
            history = _History(context, self)
            distribution, state = history.current()
            suggestion = _draw(distribution, state, context, rng)
            if suggestion is None:
                distribution, state = history.restart()
                suggestion = _draw(distribution, state, context, rng)
            if suggestion is not None:
                return suggestion
        return Suggestion(draw_eligible(context, rng))


def _draw(
    distribution: Distribution,
    state: Mapping[str, str],
    context: SuggestionContext,
    rng: random.Random,
) -> Suggestion | None:
    for _ in range(_MAX_TRIES):
        decisions, point = distribution.draw(rng.getrandbits(32))
        if context.is_eligible(decisions):
            return Suggestion(decisions, algorithm_state={**state, 'point': point})
    return None


class _History:
    """Runs so far, from the observations.

    The algorithm state of a trial holds its `cma_generation` ('run.generation'), its `point`, and
    `told`: the trials that the distribution was adapted to last; in a first generation, the trial
    at the start of the run. Trials that end late therefore do not change earlier updates.
    """

    def __init__(self, context: SuggestionContext, algorithm: CMAES) -> None:
        self._context, self._algorithm = context, algorithm
        self._by_id = {trial.id: trial for trial in context.observations}
        self._members: dict[_Generation, list[Observation]] = {}
        for trial in context.observations:
            if trial.id > 0 and 'cma_generation' in trial.algorithm_state:
                self._members.setdefault(_generation(trial), []).append(trial)
        self._run, self._last = max(self._members, default=(0, 0))

    def current(self) -> tuple[Distribution, Mapping[str, str]]:
        """Distribution of the next trial, and the algorithm state of the trial."""
        if not self._members:
            return self._begin(0, self._best_known())
        generations = [(self._run, number) for number in range(self._last + 1)]
        if not all(generation in self._members for generation in generations):
            return self.restart()  # Trials are missing.
        texts = [self._members[generation][0].algorithm_state['told'] for generation in generations]
        sources = [[int(each) for each in ids.split()] for ids in texts]
        ended = [t for t in self._members[generations[-1]] if t.state != 'pending']
        size = self._population_size(self._run)
        adapts = len(ended) >= size and any(trial.scores for trial in ended)
        if adapts:
            ended.sort(key=lambda trial: (not trial.scores, trial.id))
            sources.append(sorted(trial.id for trial in ended[:size]))
        if not all(id_ in self._by_id for ids in sources for id_ in ids):
            return self.restart()
        distribution = self._distribution(self._run, sources[0])
        distribution.tell([[_evaluation(self._by_id[id_]) for id_ in ids] for ids in sources[1:]])
        if adapts and distribution.has_converged:
            return self.restart()
        return distribution, _state(self._run, self._last + adapts, sources[-1])

    def restart(self) -> tuple[Distribution, Mapping[str, str]]:
        """Distribution at a random place."""
        return self._begin(self._run + 1, [])

    def _begin(self, run: int, start: Sequence[int]) -> tuple[Distribution, Mapping[str, str]]:
        return self._distribution(run, start), _state(run, 0, start)

    def _distribution(self, run: int, start: Sequence[int]) -> Distribution:
        return Distribution(
            self._context.spec,
            self._population_size(run),
            self._algorithm.step / (2 if start else 1),
            self._by_id[start[0]].decisions if start else None,
            f'{self._context.seed}/{run}' if run else None,
        )

    def _population_size(self, run: int) -> int:
        first = self._algorithm.population_size or Distribution.default_population_size(
            self._context.spec
        )
        return int(first * 2 ** min(run, _MAX_DOUBLINGS))

    def _best_known(self) -> list[int]:
        completed = [trial for trial in self._context.observations if trial.scores]
        return [max(completed, key=lambda trial: trial.scores).id] if completed else []


def _evaluation(trial: Observation) -> Evaluation:
    return Evaluation(trial.algorithm_state['point'], trial.scores[0] if trial.scores else None)


def _state(run: int, number: int, trial_ids: Sequence[int]) -> dict[str, str]:
    return {'cma_generation': f'{run}.{number}', 'told': ' '.join(map(str, trial_ids))}


def _generation(trial: Observation) -> _Generation:
    run, number = trial.algorithm_state['cma_generation'].split('.')
    return int(run), int(number)
