"""Bayesian optimization with a Gaussian process."""

from typing import Literal

import numpy as np
import pyglove as pg

from paxtune.algorithms.base import Algorithm, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw, draw_eligible
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.quasi_random import draw_quasi_random
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.labels import path
from trainer.symbolic.errors import UserError

_MOST_FEATURES = 300
_MOST_CANDIDATES = 2000


class GPBandit(Algorithm):
    """Bayesian optimization: a Gaussian process models the score, and says where to look next.

    The model is a Matérn-5/2 process with a length for each decision, on the decisions' own scales;
    its parameters are the most probable ones. Conditional decisions that are not open are imputed
    for the model and left out of suggestions. The acquisition is maximized by evolution and
    gradients over the whole space, with running trials as pending; what is infeasible is avoided,
    and never suggested where it is known. The first trials are quasi-random.

    Scores that are worse than the median count by their rank, so runs that diverged do no harm.
    Large studies are modelled by their best and latest 512 trials.

    See Song et al. 2024 (arXiv 2408.11527) for the model and UCB-PE, Ament et al. 2023 for the
    expected improvement, Hvarfner et al. 2024 for the prior of the lengths, Hvarfner et al. 2022
    for the prior on the optimum.

    Attributes:
        acquisition: 'log_ei' for the expected improvement; 'ucb_pe' for an upper confidence bound,
            and pure exploration of good regions while several trials run.
        num_initial: quasi-random trials before the model is asked; None for one more than there are
            decisions, from 5 to 10.
        prior_strength: how much a belief about the optimum counts (the search's `prior`). It
            fades as trials come in.
    """

    acquisition: Literal['log_ei', 'ucb_pe'] = 'log_ei'
    num_initial: int | None = None
    prior_strength: float = 10.0

    def check(self) -> None:
        if self.num_initial is not None and self.num_initial < 1:
            raise ValueError(f'num_initial must be at least 1: {self.num_initial}')
        if not self.prior_strength >= 0:
            raise ValueError(f'prior_strength must be at least 0: {self.prior_strength}')

    @property
    def prefetches(self) -> bool:
        return True

    @property
    def uses_prior(self) -> bool:
        return True

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        others = 'Use RegularizedEvolution or RandomSearch.'
        if num_objectives != 1:
            raise UserError(
                f'{type(self).__name__} models one reward; there are {num_objectives}. '
                'Use NSGA2, RegularizedEvolution or RandomSearch.'
            )
        space = FlatSpace(spec)
        if len(space) > _MOST_FEATURES:
            raise UserError(
                f'{type(self).__name__} models at most {_MOST_FEATURES} decisions, those inside of '
                f'others included; there are {len(space)}. {others}'
            )
        for feature in space.features:
            if feature.kind == 'category' and len(feature.order) > _MOST_CANDIDATES:
                raise UserError(
                    f'{path(feature.id)}: {type(self).__name__} models choices of at most '
                    f'{_MOST_CANDIDATES} candidates; there are {len(feature.order)}. {others}'
                )

    def suggest(self, context: SuggestionContext) -> Suggestion:
        space = FlatSpace(context.spec)
        completed = [trial for trial in context.observations if trial.state == 'completed']
        begun = [trial for trial in context.observations if trial.state != 'infeasible']
        initial = self.num_initial or min(max(len(space) + 1, 5), 10)
        if len(begun) < initial or len(completed) < 2:
            return Suggestion(_initial(context, space))
        # Imported here: it imports JAX, and a search that only draws has no use for it.
        from paxtune.algorithms.gp.search import best

        decisions = best(context, space, self.acquisition, self.prior_strength)
        return Suggestion(draw_eligible(context, context.rng()) if decisions is None else decisions)


def _initial(context: SuggestionContext, space: FlatSpace) -> Decisions:
    """Quasi-random decisions; the numbers of the first trial are in the middle of their ranges."""
    if context.number == 1:
        row = np.nan_to_num(space.encode(draw(context.spec, context.rng())), nan=0.5)
        is_number = [feature.kind != 'category' for feature in space.features]
        middle = space.decode(np.where(is_number, 0.5, row))
        if context.is_eligible(middle):
            return middle
    return draw_quasi_random(context)
