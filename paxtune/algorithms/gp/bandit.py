import threading
from typing import Literal

import numpy as np
import pyglove as pg
from threadpoolctl import threadpool_limits

from paxtune.algorithms.base import Algorithm, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw, draw_eligible
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp.novelty import EarlierTrials
from paxtune.algorithms.quasi_random import draw_quasi_random
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.labels import parameter_path
from trainer.symbolic.component import require_at_least
from trainer.symbolic.errors import UserError

_MAX_FEATURES = 300
_MAX_CANDIDATES = 2000

_one_at_a_time = threading.Lock()


class GPBandit(Algorithm):
    """Bayesian optimization with a Gaussian process.

    The process has a Matérn-5/2 kernel with a length scale for each decision on its own scale,
    fitted by maximum a posteriori. Inactive conditional decisions are imputed for the model and
    omitted from suggestions. Evolution and gradient ascent maximize the acquisition function over
    the whole space. Running trials are pending observations. A second model avoids infeasible
    decisions; decisions known to be infeasible are never suggested. The first trials are
    quasi-random. No suggestion is within 0.1 % of all ranges of an earlier trial.

    Scores below the median are warped to their rank, so that diverged runs do no harm. Large
    studies are modelled by the best and the latest of their trials, 512 in all.

    Model and UCB-PE: Song et al. 2024 (arXiv 2408.11527). Expected improvement: Ament et al. 2023.
    Prior of the length scales: Hvarfner et al. 2024. User prior (πBO): Hvarfner et al. 2022.

    Attributes:
        acquisition: 'log_ei' for the expected improvement; 'ucb_pe' for an upper confidence bound,
            and pure exploration of good regions while several trials run.
        num_initial: number of quasi-random trials before the model is used; None for the number of
            decisions plus one, from 5 to 10.
        prior_strength: weight of the user prior (the search's `prior`). It decays with the number
            of trials.
    """

    uses_prior = True

    acquisition: Literal['log_ei', 'ucb_pe'] = 'log_ei'
    num_initial: int | None = None
    prior_strength: float = 10.0

    def check(self) -> None:
        require_at_least(self, 1, 'num_initial')
        require_at_least(self, 0, 'prior_strength')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        others = 'Use RegularizedEvolution or RandomSearch.'
        self._require_reward(num_objectives, exactly_one=True)
        space = FlatSpace(spec)
        if len(space) > _MAX_FEATURES:
            raise UserError(
                f'{type(self).__name__} models at most {_MAX_FEATURES} decisions, conditional '
                f'ones included; there are {len(space)}. {others}'
            )
        for feature in space.features:
            if feature.kind == 'category' and len(feature.order) > _MAX_CANDIDATES:
                raise UserError(
                    f'{parameter_path(feature.id)}: {type(self).__name__} models choices of at '
                    f'most {_MAX_CANDIDATES} candidates; there are {len(feature.order)}. {others}'
                )

    def suggest(self, context: SuggestionContext) -> Suggestion:
        space = FlatSpace(context.spec)
        completed = [trial for trial in context.observations if trial.state == 'completed']
        started = [trial for trial in context.observations if trial.state != 'infeasible']
        initial = self.num_initial or min(max(len(space) + 1, 5), 10)
        if len(started) < initial or len(completed) < 2:
            return Suggestion(_initial(context, space))
        # Imported here: `scipy.stats` takes a second.
        from paxtune.algorithms.gp.search import suggest_decisions

        # Threads would wait actively for small products, and their number would change the last
        # digits. The limit holds for the whole process, hence the lock.
        with _one_at_a_time, threadpool_limits(1, user_api='blas'):
            decisions = suggest_decisions(context, space, self.acquisition, self.prior_strength)
        return Suggestion(draw_eligible(context, context.rng()) if decisions is None else decisions)


def _initial(context: SuggestionContext, space: FlatSpace) -> Decisions:
    """Quasi-random decisions; the first trial has its numbers in the middle of their ranges."""
    if context.number == 1:
        row = np.nan_to_num(space.encode(draw(context.spec, context.rng())), nan=0.5)
        is_number = [feature.kind != 'category' for feature in space.features]
        middle = space.decode(np.where(is_number, 0.5, row))
        if context.is_eligible(middle):
            return middle
    earlier = EarlierTrials(space, context.observations)
    return draw_quasi_random(context, lambda decisions: not earlier.has_close(decisions))
