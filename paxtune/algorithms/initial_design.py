"""Trials before a model has enough of them."""

import statistics
from collections.abc import Sequence

import numpy as np

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.algorithms.encoding.novelty import EarlierTrials
from paxtune.algorithms.encoding.sampling import draw
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.quasi_random import draw_quasi_random
from paxtune.search_space.decisions import Decisions

_CENTRAL = statistics.NormalDist(0.5, 0.2)  # Of initial numbers, in units of their ranges.


def is_needed(
    observations: Sequence[Observation], space: FlatSpace, num_initial: int | None
) -> bool:
    """Returns True while a model has too few trials.

    Args:
        num_initial: number of trials before the model; None for the number of decisions plus one,
            from 5 to 10.
    """
    num_started = sum(trial.state != 'infeasible' for trial in observations)
    num_completed = sum(trial.state == 'completed' for trial in observations)
    return num_started < (num_initial or min(max(len(space) + 1, 5), 10)) or num_completed < 2


def draw_initial(context: SuggestionContext, space: FlatSpace) -> Decisions:
    """Draws quasi-random decisions; the first trial has its numbers in the middle of their ranges.

    The numbers of the others have a normal distribution about the middle: people choose ranges
    whose ends are worse than the rest.

    Raises:
        Exhausted: none exist.
        UserError: none were found, although some may exist.
    """
    if context.number == 1:
        row = np.nan_to_num(space.encode(draw(context.spec, context.rng())), nan=0.5)
        is_number = [feature.kind != 'category' for feature in space.features]
        middle = space.decode(np.where(is_number, 0.5, row))
        if context.is_eligible(middle):
            return middle
    earlier = EarlierTrials(space, context.observations)
    return draw_quasi_random(context, lambda decisions: not earlier.has_close(decisions), _central)


def _central(share: float) -> float:
    """Quantile of the distribution of initial numbers, truncated to the unit interval."""
    outside = _CENTRAL.cdf(0.0)
    return min(max(_CENTRAL.inv_cdf(outside + share * (1.0 - 2.0 * outside)), 0.0), 1.0)
