from typing import Literal

import numpy as np
import pyglove as pg

from paxtune.algorithms.base import SuggestionContext
from paxtune.algorithms.encoding.earlier import EarlierStudy
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp.blas import one_blas_thread
from paxtune.algorithms.model_based import ModelBased
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.labels import parameter_path
from trainer.symbolic.errors import UserError

_MAX_FEATURES = 300

MAX_CANDIDATES = 2000
"""Candidates of a choice that are modelled at most."""


MAX_REWARDS = 4
"""Rewards that are modelled at most: boxes beyond a front multiply with each."""


class GPBandit(ModelBased):
    """Bayesian optimization with a Gaussian process.

    The process has a Matérn-5/2 kernel with a length scale for each decision on its own scale,
    fitted by maximum a posteriori. Inactive conditional decisions are imputed for the model and
    omitted from suggestions. Evolution and gradient ascent maximize the acquisition function over
    the whole space. Running trials are pending observations. A second model avoids infeasible
    decisions; decisions known to be infeasible are never suggested. The first trials are
    quasi-random. No suggestion is within 0.1 % of all ranges of an earlier trial.

    Scores below the median are warped to their rank, so that diverged runs do no harm. Large
    studies are modelled by the best and the latest of their trials: 512 in all, and 256 from 2,000
    trials on, so that a suggestion takes no longer.

    Each of two to four rewards has a process of its own. The acquisition function is then the
    expected improvement of the hypervolume, above a reference a tenth of the front's span below its
    worst scores.

    Model and UCB-PE: Song et al. 2024 (arXiv 2408.11527). Expected improvement: Ament et al. 2023;
    of noisy scores: Picheny et al. 2013; of the hypervolume: Yang et al. 2019. Prior of the length
    scales: Hvarfner et al. 2024. User prior (πBO): Hvarfner et al. 2022.

    Attributes:
        acquisition: 'log_ei' for the expected improvement; 'ucb_pe' for an upper confidence bound,
            and pure exploration of good regions while several trials run.
    """

    acquisition: Literal['log_ei', 'ucb_pe'] = 'log_ei'

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        super().check_space(spec, num_objectives)
        require_size_of_model(spec, num_objectives, type(self).__name__)
        if self.acquisition != 'log_ei':
            self._require_reward(
                num_objectives, exactly_one=True, name=f"acquisition='{self.acquisition}'"
            )

    def _earlier_studies(self, context: SuggestionContext, space: FlatSpace) -> list[EarlierStudy]:
        from paxtune.algorithms.gp.earlier_studies import compared_in_one_thread

        return compared_in_one_thread(context, space)

    def _modelled(self, context: SuggestionContext, space: FlatSpace) -> Decisions | None:
        # Imported here: `scipy.stats` takes a second.
        from paxtune.algorithms.gp import search

        rng = np.random.default_rng(context.rng().getrandbits(64))
        with one_blas_thread():
            fitted = search.fit(context, space, rng)
            return search.suggest_decisions(
                context, fitted, self.acquisition, self.prior_strength, rng
            )


def require_size_of_model(spec: pg.DNASpec, num_objectives: int, algorithm: str) -> None:
    """Raises UserError for a space, or a number of rewards, that no process can model."""
    if num_objectives > MAX_REWARDS:
        raise UserError(
            f'search.algorithm: {algorithm} models at most {MAX_REWARDS} rewards; there are '
            f'{num_objectives}. Use NSGA2 or TPE.'
        )
    space, others = FlatSpace(spec), 'Use RegularizedEvolution or RandomSearch.'
    if len(space) > _MAX_FEATURES:
        raise UserError(
            f'{algorithm} models at most {_MAX_FEATURES} decisions, conditional ones included; '
            f'there are {len(space)}. {others}'
        )
    for feature in space.features:
        if feature.kind == 'category' and len(feature.order) > MAX_CANDIDATES:
            raise UserError(
                f'{parameter_path(feature.id)}: {algorithm} models choices of at most '
                f'{MAX_CANDIDATES} candidates; there are {len(feature.order)}. {others}'
            )
