import numpy as np
import pyglove as pg

from paxtune.algorithms import initial_design
from paxtune.algorithms.base import Algorithm, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp.bandit import require_size_of_model
from paxtune.algorithms.gp.blas import one_blas_thread
from paxtune.algorithms.tpe.tpe import TPE
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.component import require_at_least

_NO_GP, _ONLY_GP = 0.25, 0.5  # Information of the process, in nats a trial.


class Portfolio(Algorithm):
    """A Gaussian process where it predicts the trials, a Parzen estimator where it does not.

    Before each suggestion the process of `GPBandit` predicts every completed trial from the others.
    The gain is the mean logarithm of its likelihood over that of a normal distribution for all
    trials. From 0.5 nats on, the process suggests the trial; up to 0.25 nats, `TPE` does. Between
    them both are drawn, in proportion. So smooth objectives are searched by a model of their shape,
    and rough, noisy or flat ones by ranks.

    A portfolio that weighs strategies by their success: Hoffman et al. 2011 (UAI). The weight by
    leave-one-out predictions is ours. The limits were chosen on eight TaskSet tables and
    six functions of BBOB: see `benchmarks/results/search_quality.md`.

    Attributes:
        num_initial: number of quasi-random trials before the models are used; None for the number
            of decisions plus one, from 5 to 10.
        prior_strength: weight of the user prior: see `GPBandit` and `TPE`.

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

    uses_prior = True
    uses_predicted_ends = True

    num_initial: int | None = None
    prior_strength: float = 10.0

    def check(self) -> None:
        require_at_least(self, 1, 'num_initial')
        require_at_least(self, 0, 'prior_strength')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        self._require_reward(num_objectives, exactly_one=True)
        require_size_of_model(spec, type(self).__name__)

    def gp_share(self, information: float) -> float:
        """Returns the probability that the process suggests a trial; 0 or less for never.

        Args:
            information: of the process, in nats a trial.

        Example:
            >>> Portfolio().gp_share(0.375)
            0.5
        """
        return (information - _NO_GP) / (_ONLY_GP - _NO_GP)

    def suggest(self, context: SuggestionContext) -> Suggestion:
        space = FlatSpace(context.spec)
        if initial_design.is_needed(context.observations, space, self.num_initial):
            return Suggestion(initial_design.draw_initial(context, space))
        decisions = self._modelled(context, space)
        return Suggestion(draw_eligible(context, context.rng()) if decisions is None else decisions)

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
