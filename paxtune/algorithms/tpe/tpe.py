from paxtune.algorithms.base import SuggestionContext
from paxtune.algorithms.encoding.earlier import EarlierStudy
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.model_based import ModelBased
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.component import require_at_least


class TPE(ModelBased):
    """Tree-structured Parzen estimator, multivariate.

    The best tenth of the trials have one density of decisions, all others another one. The next
    trial has the largest ratio of both, among draws from the density of the good trials. The
    densities are of all decisions together. They are mixtures of one kernel for each trial, on the
    scale of each range. A decision that a trial does not have counts as uniform there.

    Of more than 2,000 bad or infeasible trials, as many make their densities, taken evenly.

    Running trials count as bad ones. A second pair of densities, of feasible and infeasible trials,
    avoids infeasible decisions. The first trials are quasi-random. No suggestion is within 0.1 % of
    all ranges of an earlier trial.

    Trials with several rewards rank by fronts and, within a front, the least crowded ones first.

    Scores count by their order alone. So plateaus and diverged runs do no harm, where a Gaussian
    process of the same trials predicts little. On smooth objectives it needs more trials.

    Bergstra et al., "Algorithms for hyper-parameter optimization", NeurIPS 2011. Multivariate
    kernels: Falkner et al. 2018 (arXiv 1807.01774). Constraints: Watanabe and Hutter 2023 (arXiv
    2211.14411). Several rewards: Ozaki et al. 2022 (JAIR 73).

    Attributes:
        num_candidates: number of draws; the best draw becomes the trial.

    Example:
        >>> import pyglove as pg
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

    num_candidates: int = 24

    def check(self) -> None:
        super().check()
        require_at_least(self, 1, 'num_candidates')

    def _earlier_studies(self, context: SuggestionContext, space: FlatSpace) -> list[EarlierStudy]:
        from paxtune.algorithms.gp.earlier_studies import compared_in_one_thread

        return compared_in_one_thread(context, space)

    def _modelled(self, context: SuggestionContext, space: FlatSpace) -> Decisions | None:
        # Imported here: `scipy.special` takes a quarter of a second.
        from paxtune.algorithms.tpe.search import suggest_decisions

        return suggest_decisions(context, space, self.num_candidates, self.prior_strength)
