import pyglove as pg

from paxtune.algorithms import initial_design
from paxtune.algorithms.base import Algorithm, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from trainer.symbolic.component import require_at_least


class TPE(Algorithm):
    """Tree-structured Parzen estimator, multivariate.

    The best tenth of the trials have one density of decisions, all others another one. The next
    trial has the largest ratio of both, among draws from the density of the good trials. The
    densities are of all decisions together. They are mixtures of one kernel for each trial, on the
    scale of each range. A decision that a trial does not have counts as uniform there.

    Running trials count as bad ones. A second pair of densities, of feasible and infeasible trials,
    avoids infeasible decisions. The first trials are quasi-random. No suggestion is within 0.1 % of
    all ranges of an earlier trial.

    Scores count by their order alone. So plateaus and diverged runs do no harm, where a Gaussian
    process of the same trials predicts little. On smooth objectives it needs more trials.

    Bergstra et al., "Algorithms for hyper-parameter optimization", NeurIPS 2011. Multivariate
    kernels: Falkner et al. 2018 (arXiv 1807.01774). Constraints: Watanabe and Hutter 2023 (arXiv
    2211.14411).

    Attributes:
        num_candidates: number of draws, of which the best one becomes the trial.
        num_initial: number of quasi-random trials before the model is used; None for the number of
            decisions plus one, from 5 to 10.
        prior_strength: weight of the user prior (the search's `prior`) in good trials. It decays
            with their number.

    Example:
        >>> from paxtune.algorithms import Observation
        >>> spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0)))
        >>> trials = [
        ...     Observation(i + 1, {'x': x}, 'completed', (-abs(x - 0.7),))
        ...     for i, x in enumerate((0.1, 0.3, 0.5, 0.69, 0.9))
        ... ]
        >>> context = SuggestionContext(spec, 0, 6, lambda: trials)
        >>> 0.4 < TPE().suggest(context).decisions['x'] < 0.9
        True
    """

    uses_prior = True
    uses_predicted_ends = True

    num_candidates: int = 24
    num_initial: int | None = None
    prior_strength: float = 10.0

    def check(self) -> None:
        require_at_least(self, 1, 'num_candidates', 'num_initial')
        require_at_least(self, 0, 'prior_strength')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        self._require_reward(num_objectives, exactly_one=True)

    def suggest(self, context: SuggestionContext) -> Suggestion:
        space = FlatSpace(context.spec)
        if initial_design.is_needed(context.observations, space, self.num_initial):
            return Suggestion(initial_design.draw_initial(context, space))
        # Imported here: `scipy.special` takes a quarter of a second.
        from paxtune.algorithms.tpe.search import suggest_decisions

        decisions = suggest_decisions(context, space, self.num_candidates, self.prior_strength)
        return Suggestion(draw_eligible(context, context.rng()) if decisions is None else decisions)
