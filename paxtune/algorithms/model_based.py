"""The base of algorithms that model earlier trials, and the trials before there are enough."""

from collections.abc import Sequence

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.earlier import EarlierStudy, first_trial, is_own
from paxtune.algorithms.encoding.history import encoded_rows
from paxtune.algorithms.encoding.known_values import KnownRow, middle, truncated
from paxtune.algorithms.encoding.novelty import EarlierTrials
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.quasi_random import draw_quasi_random
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.component import require_at_least

_CERTAIN = 0.95  # The trust that needs no hedge.


class ModelBased(Algorithm):
    """Suggests quasi-random trials until there are enough for a model.

    Every second one of them is the best of an earlier study, where that study is no misleading one.

    Attributes:
        num_initial: number of quasi-random trials before the model is used; None for the number of
            decisions plus one, from 5 to 10.
        prior_strength: weight of known values (the search's `prior`), in trials. It is multiplied
            by their support: see `KnownRow.support`. On BBOB in 8 dimensions, with known values
            off by a tenth or a fifth of the range, 2 was better than 0 and 10.
    """

    uses_prior = True
    uses_predicted_ends = True

    num_initial: int | None = None
    prior_strength: float = 2.0

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
        num_initial = self.num_initial or min(max(len(space) + 1, 5), 10)
        if _needs_more(own, num_initial):
            turn, is_other = divmod(sum(trial.state != 'infeasible' for trial in own), 2)
            if not is_other and (found := first_trial(context, space, studies, turn)) is not None:
                return Suggestion(found)
            return Suggestion(draw_initial(context, space, num_initial))
        decisions = self._modelled(context, space)
        return Suggestion(draw_eligible(context, context.rng()) if decisions is None else decisions)

    def _earlier_studies(self, context: SuggestionContext, space: FlatSpace) -> list[EarlierStudy]:
        """Compares earlier studies with the trials of this one."""
        raise NotImplementedError(type(self).__name__)

    def _modelled(self, context: SuggestionContext, space: FlatSpace) -> Decisions | None:
        """Returns the decisions that the model prefers; None if it finds none that are new."""
        raise NotImplementedError(type(self).__name__)


def _needs_more(observations: Sequence[Observation], num_initial: int) -> bool:
    num_started = sum(trial.state != 'infeasible' for trial in observations)
    num_completed = sum(trial.state == 'completed' for trial in observations)
    return num_started < num_initial or num_completed < 2


def draw_initial(
    context: SuggestionContext, space: FlatSpace, num_initial: int | None = None
) -> Decisions:
    """Draws quasi-random decisions; the first trial has its numbers in the middle of their ranges.

    The numbers of later trials have a normal distribution about the middle: people choose ranges
    whose ends are worse than the rest. With known values, the first trial has these, and the second
    the middle. Of the others, those with odd numbers are about the known values, until they lose
    to the others. Once they have surely won, all are.

    Args:
        context: of the suggestion.
        space: encodes decisions.
        num_initial: number of first trials whose best one counts. None for a population, which also
            needs variety.

    Raises:
        Exhausted: none exist.
        UserError: none were found, although some may exist.
    """
    rows, known = encoded_rows(context, space), None
    if context.prior:
        row = KnownRow(space, context.prior)
        if (center := row.center(context, rows)) is not None:
            return center
        if row.trust(context.observations, rows) >= (0.5 if context.number % 2 else _CERTAIN):
            known = row.quantiles(num_initial)
    if context.number == (2 if context.prior else 1):
        central = middle(context, space)
        if context.is_eligible(central):
            return central
    earlier = EarlierTrials(space, context.observations, rows)
    return draw_quasi_random(
        context, lambda decisions: not earlier.has_close(decisions), truncated(0.5), known
    )
