from paxtune.algorithms.base import Algorithm, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible


class RandomSearch(Algorithm):
    """Draws every decision at random, on its scale, without repetition.

    Infeasible experiments are drawn again. If nearly all of a finite space was tried or is
    infeasible, the rest follows in the order of the space.

    Example:
        >>> import pyglove as pg
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1e-2, 'log')))
        >>> RandomSearch().suggest(SuggestionContext(spec, 0, 1, list)).decisions
        {'rate': 0.00...}
    """

    def suggest(self, context: SuggestionContext) -> Suggestion:
        return Suggestion(draw_eligible(context, context.rng()))
