import numpy as np
import pyglove as pg

from paxtune.algorithms.base import SuggestionContext
from paxtune.algorithms.encoding.earlier import EarlierStudy
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp.bandit import require_size_of_model
from paxtune.algorithms.gp.blas import one_blas_thread
from paxtune.algorithms.model_based import ModelBased
from paxtune.algorithms.tpe.tpe import TPE
from paxtune.search_space.decisions import Decisions

_NO_GP, _ONLY_GP = 0.25, 0.5  # Information of the process, in nats a trial.


class Portfolio(ModelBased):
    """A Gaussian process where it predicts the trials, a Parzen estimator where it does not.

    Before each suggestion the process of `GPBandit` predicts every completed trial from the others.
    The gain is the mean log likelihood minus the one of a single normal distribution for all
    trials. From 0.5 nats on, the process suggests the trial; up to 0.25 nats, `TPE` does. Between
    them both are drawn, in proportion. So smooth objectives are searched by a model of their shape,
    and rough, noisy or flat ones by ranks.

    Each of two to four rewards has a process. The one that predicts worst counts, since a model of
    the cost alone would search for the cheapest trials.

    A portfolio that weighs strategies by their success: Hoffman et al. 2011 (UAI). The weight by
    leave-one-out predictions is ours. The limits were chosen on eight TaskSet tables and
    six functions of BBOB: see `benchmarks/results/search_quality.md`.

    Example:
        >>> from paxtune.algorithms import Observation
        >>> spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0)))
        >>> trials = [
        ...     Observation(i + 1, {'x': x}, 'completed', (-((x - 0.7) ** 2),))
        ...     for i, x in enumerate((0.1, 0.3, 0.5, 0.8, 0.9))
        ... ]
        >>> context = SuggestionContext(spec, 0, 6, lambda: trials)
        >>> 0.6 < Portfolio().suggest(context).decisions['x'] < 0.9
        True
    """

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        super().check_space(spec, num_objectives)
        require_size_of_model(spec, num_objectives, type(self).__name__)

    def gp_share(self, information: float) -> float:
        """Returns the probability that the process suggests a trial; 0 or less for never.

        Args:
            information: of the process, in nats a trial.

        Example:
            >>> Portfolio().gp_share(0.375)
            0.5
        """
        return (information - _NO_GP) / (_ONLY_GP - _NO_GP)

    def _earlier_studies(self, context: SuggestionContext, space: FlatSpace) -> list[EarlierStudy]:
        from paxtune.algorithms.gp.earlier_studies import compared_in_one_thread

        return compared_in_one_thread(context, space)

    def _modelled(self, context: SuggestionContext, space: FlatSpace) -> Decisions | None:
        # Imported here: `scipy.stats` takes a second.
        from paxtune.algorithms.gp import search as gp_search
        from paxtune.algorithms.tpe import search as tpe_search

        rng = np.random.default_rng(context.rng().getrandbits(64))
        with one_blas_thread():
            fitted = gp_search.fit(context, space, rng)
            if rng.random() < self.gp_share(fitted.information()):
                return gp_search.suggest_decisions(
                    context, fitted, 'log_ei', self.prior_strength, rng
                )
        return tpe_search.suggest_decisions(
            context, space, TPE().num_candidates, self.prior_strength
        )
