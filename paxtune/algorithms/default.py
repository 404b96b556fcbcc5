import pyglove as pg

from paxtune.algorithms.base import Algorithm, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.unit_cube import FlatSpace, depths
from paxtune.algorithms.evolution.nsga2 import NSGA2
from paxtune.algorithms.evolution.regularized import RegularizedEvolution
from paxtune.algorithms.gp.bandit import MAX_CANDIDATES, MAX_REWARDS
from paxtune.algorithms.grid import Grid
from paxtune.algorithms.portfolio import Portfolio
from paxtune.algorithms.quasi_random import QuasiRandom
from paxtune.search_space.decisions import size

_SMALL = 32  # Experiments: hardly more than the initial trials of a model.
_MAX_DECISIONS = 50
_MAX_DEPTH = 3


class Default(Algorithm):
    """Chooses an algorithm by the space.

    | space | algorithm |
    | --- | --- |
    | at most 32 experiments | all of them, in a random order (`Grid`) |
    | no reward | quasi-random points (`QuasiRandom`) |
    | more than four rewards | `NSGA2` |
    | more than 50 decisions, or over three levels of them | evolution: see below |
    | a choice of more than 2000 candidates | the same |
    | any other | Gaussian processes or Parzen estimator (`Portfolio`) |

    Evolution is `NSGA2` for several rewards, and `RegularizedEvolution` with quasi-random first
    trials for one.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1e-2, 'log')))
        >>> Default().resolved(spec, 1)
        Portfolio(num_initial=None, prior_strength=2.0)
        >>> Default().why(spec, 1)
        'one reward, 1 decision'
    """

    def resolved(self, spec: pg.DNASpec, num_objectives: int) -> Algorithm:
        return _chosen(spec, num_objectives)[0]

    def why(self, spec: pg.DNASpec, num_objectives: int) -> str:
        """Short reason for the choice."""
        return _chosen(spec, num_objectives)[1]

    def suggest(self, context: SuggestionContext) -> Suggestion:
        return self.resolved(context.spec, 1).suggest(context)


def _chosen(spec: pg.DNASpec, num_objectives: int) -> tuple[Algorithm, str]:
    count = size(spec)
    if count is not None and count <= _SMALL:
        return Grid(points_per_range=None, shuffle=True), f'{count} experiments'
    if num_objectives == 0:
        return QuasiRandom(), 'no reward'
    space = FlatSpace(spec)
    decisions = f'{len(space)} decision{"s" if len(space) > 1 else ""}'
    if num_objectives > MAX_REWARDS:
        return NSGA2(), f'{num_objectives} rewards'
    rewards = 'one reward' if num_objectives == 1 else f'{num_objectives} rewards'
    depth = 1 + max(depths([feature.parent for feature in space.features]))
    if len(space) > _MAX_DECISIONS:
        return _evolution(num_objectives), decisions
    if depth > _MAX_DEPTH:
        return _evolution(num_objectives), f'{decisions}, in {depth} levels'
    if any(each.kind == 'category' and len(each.order) > MAX_CANDIDATES for each in space.features):
        why = f'{decisions}, one with more than {MAX_CANDIDATES} candidates'
        return _evolution(num_objectives), why
    return Portfolio(), f'{rewards}, {decisions}'


def _evolution(num_objectives: int) -> Algorithm:
    if num_objectives > 1:
        return NSGA2()
    # A population that a study of some dozens of trials can fill.
    return RegularizedEvolution(population_size=20, tournament_size=5, first='quasi_random')
