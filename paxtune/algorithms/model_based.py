"""The base of algorithms that model earlier trials, and the trials before there are enough."""

import statistics
from collections.abc import Sequence

import numpy as np
import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.earlier import EarlierStudy, first_trial, is_own
from paxtune.algorithms.encoding.history import encoded_rows
from paxtune.algorithms.encoding.novelty import EarlierTrials
from paxtune.algorithms.encoding.sampling import draw, draw_eligible
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.quasi_random import draw_quasi_random
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.component import require_at_least

_CENTRAL = statistics.NormalDist(0.5, 0.2)  # Initial numbers, in units of their ranges.


class ModelBased(Algorithm):
    """Suggests quasi-random trials until there are enough for a model.

    Every second one of them is the best of an earlier study, where that study is no misleading one.

    Attributes:
        num_initial: number of quasi-random trials before the model is used; None for the number of
            decisions plus one, from 5 to 10.
        prior_strength: weight of the user prior (the search's `prior`). It decays with the number
            of trials.
    """

    uses_prior = True
    uses_predicted_ends = True

    num_initial: int | None = None
    prior_strength: float = 10.0

    def check(self) -> None:
        require_at_least(self, 1, 'num_initial')
        require_at_least(self, 0, 'prior_strength')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        self._require_reward(num_objectives)

    def suggest(self, context: SuggestionContext) -> Suggestion:
        space = FlatSpace(context.spec)
        own, studies = context.observations, list[EarlierStudy]()
        if own and not is_own(own[0]):
            own = [trial for trial in own if is_own(trial)]
            studies = self._earlier_studies(context, space)
        if _needs_more(own, space, self.num_initial):
            turn, is_other = divmod(sum(trial.state != 'infeasible' for trial in own), 2)
            if not is_other and (found := first_trial(context, space, studies, turn)) is not None:
                return Suggestion(found)
            return Suggestion(_draw_initial(context, space))
        decisions = self._modelled(context, space)
        return Suggestion(draw_eligible(context, context.rng()) if decisions is None else decisions)

    def _earlier_studies(self, context: SuggestionContext, space: FlatSpace) -> list[EarlierStudy]:
        """Compares earlier studies with the trials of this one."""
        raise NotImplementedError(type(self).__name__)

    def _modelled(self, context: SuggestionContext, space: FlatSpace) -> Decisions | None:
        """Returns the decisions that the model prefers; None if it finds none that are new."""
        raise NotImplementedError(type(self).__name__)


def _needs_more(
    observations: Sequence[Observation], space: FlatSpace, num_initial: int | None
) -> bool:
    num_started = sum(trial.state != 'infeasible' for trial in observations)
    num_completed = sum(trial.state == 'completed' for trial in observations)
    return num_started < (num_initial or min(max(len(space) + 1, 5), 10)) or num_completed < 2


def _draw_initial(context: SuggestionContext, space: FlatSpace) -> Decisions:
    """Draws quasi-random decisions; the first trial has its numbers in the middle of their ranges.

    The numbers of later trials have a normal distribution about the middle: people choose ranges
    whose ends are worse than the rest.

    Raises:
        Exhausted: none exist.
        UserError: none were found, although some may exist.
    """
    if context.number == 1:
        row = np.nan_to_num(space.encode(draw(context.spec, context.rng())), nan=0.5)
        is_number = [feature.kind != 'category' for feature in space.features]
        middle = space.decode(np.where(is_number, 0.5, row))
        if context.is_eligible(middle):
            return middle
    earlier = EarlierTrials(space, context.observations, encoded_rows(context, space))
    return draw_quasi_random(context, lambda decisions: not earlier.has_close(decisions), _central)


def _central(share: float) -> float:
    """Quantile of the distribution of initial numbers, truncated to the unit interval."""
    outside = _CENTRAL.cdf(0.0)
    return min(max(_CENTRAL.inv_cdf(outside + share * (1.0 - 2.0 * outside)), 0.0), 1.0)
