"""Earlier trials as rows of unit values, which are kept from one suggestion to the next."""

import operator

import numpy as np

from paxtune.algorithms.base import SuggestionContext
from paxtune.algorithms.encoding.unit_cube import FlatSpace

_ROWS = 'rows'


def encoded_rows(context: SuggestionContext, space: FlatSpace) -> np.ndarray:
    """Encodes the observations of a context [N, features]; NaN where a feature is inactive.

    The context's memo has the rows of the suggestion before: only other decisions are encoded.

    Example:
        >>> import pyglove as pg
        >>> from paxtune.algorithms.base import Observation
        >>> spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 4.0)))
        >>> context = SuggestionContext(spec, 0, 2, lambda: [Observation(1, {'x': 1.0}, 'pending')])
        >>> encoded_rows(context, FlatSpace(spec))
        array([[0.25]])
    """
    decisions = [trial.decisions for trial in context.observations]
    known, rows = context.memo.get(_ROWS, ([], np.empty((0, len(space)))))
    count = min(len(known), len(decisions))
    is_same = np.fromiter(map(operator.is_, decisions[:count], known), bool, count)
    found = np.empty((len(decisions), len(space)))
    found[:count] = rows[:count]
    for place in [*np.flatnonzero(~is_same), *range(count, len(decisions))]:
        found[place] = space.encode(decisions[place])
    context.memo[_ROWS] = decisions, found
    return found
