"""Novelty of decisions: a point very close to an earlier trial only repeats that trial."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyglove as pg

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.algorithms.encoding.scaling import to_unit
from paxtune.algorithms.encoding.unit_cube import Feature, FlatSpace
from paxtune.search_space.decisions import Decisions, is_integer

RESOLUTION = 1e-3
"""Distance, as a share of each range, within which two numbers count as the same."""

WIDE = 1e-2
"""Distance to earlier trials after a candidate that repeats one: the next is worth its trial."""

_MAX_NEAR_RUNNING = 0.25
"""Share of a single range that may be too close to running trials on either side."""

_MAX_INFEASIBLE = 40  # A check of feasibility takes some hundredths of a second.
_INACTIVE = -1.0  # Farther from any unit value than every distance.


class EarlierTrials:
    """Earlier trials of this study as rows of unit values.

    Choices, and integers of short ranges, are equal or different. Other numbers are compared by
    their distance on the scale of their range.
    """

    def __init__(
        self,
        space: FlatSpace,
        observations: Sequence[Observation],
        rows: np.ndarray | None = None,
    ) -> None:
        """Reads trials in any state; trials of earlier studies do not count.

        Args:
            rows: the encoded trials, where they are known: see `encoded_rows`.
        """
        self._space = space
        if rows is None:
            encoded = [space.encode(trial.decisions) for trial in observations]
            rows = np.array(encoded).reshape(len(encoded), len(space))
        is_own = np.array([trial.id > 0 for trial in observations], bool)
        self._rows = np.nan_to_num(rows[is_own], nan=_INACTIVE)
        # Only the score of a running trial shows whether its neighbours are worth trials.
        is_running = np.array([each.state == 'pending' for each in observations], bool)[is_own]
        distance = min(WIDE, _MAX_NEAR_RUNNING / max(is_running.sum(), 1))
        self._least = np.where(is_running, distance, 0.0)[:, None]
        self._is_fine = np.array([_is_fine(space, feature) for feature in space.features], bool)

    def has_close(self, decisions: Decisions, distance: float = RESOLUTION) -> bool:
        """Returns True if all numbers are within a distance of an earlier trial's.

        A running trial has the wider distance, or less with more than 25 of them. At distance 0
        only equal decisions are close.

        Decisions without a fine number are close to none: they are untried unless they are equal.
        """
        row = self._row(decisions)
        if not np.any(self._is_fine & (row != _INACTIVE)):
            return False
        distances = np.maximum(distance, self._least) if distance else np.zeros((1, 1))
        limits = np.where(self._is_fine, distances, 1e-9)
        return bool(np.any(np.all(np.abs(self._rows - row) <= limits, axis=1)))

    def _row(self, decisions: Decisions) -> np.ndarray:
        return np.nan_to_num(self._space.encode(decisions), nan=_INACTIVE)


def first_new(
    context: SuggestionContext,
    earlier: EarlierTrials,
    candidates: Iterable[Decisions],
    distance: float,
    wider: float,
) -> Decisions | None:
    """Finds the first feasible candidate that is farther than a distance from earlier trials.

    Where the model prefers a known point, as at a bound, its neighbours teach little more. After
    such a candidate, others must be farther than the wider distance.
    """
    refused: list[Decisions] = []
    for decisions in candidates:
        if earlier.has_close(decisions, distance):
            distance = wider
            continue
        if context.seen(decisions) or decisions in refused:
            continue
        if context.infeasibility_reason(decisions) is None:
            return decisions
        refused.append(decisions)
        if len(refused) == _MAX_INFEASIBLE:
            break
    return None


def _is_fine(space: FlatSpace, feature: Feature) -> bool:
    """Returns True for a range in which neighbouring numbers are closer than the resolution."""
    if feature.kind != 'number':
        return False
    point: pg.geno.Float = space.ranges[feature.id]
    if not is_integer(point) or point.max_value - point.min_value < 1:
        return not is_integer(point)
    low, high = point.min_value, point.max_value
    steps = [to_unit(point, a + 1) - to_unit(point, a) for a in (low, high - 1)]
    return min(map(abs, steps)) < RESOLUTION
