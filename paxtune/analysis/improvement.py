"""The room for improvement that the Gaussian process of a study sees, against its error.

It says when a search may end: once the best that may still be found is no farther from the best
trial than predictions are from final values. The bound is that of Makarova et al. (2022).
"""

import dataclasses
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.analysis.surrogate import MIN_TRIALS, Surrogate, fit, sampled_trials
from paxtune.analysis.trade_off import Axis, axis_of

if TYPE_CHECKING:
    from paxtune.study.study_view import StudyView
    from paxtune.study.trial import Trial

Array: TypeAlias = np.ndarray

_MOST_FITS = 10  # Each takes up to a second.
_NUM_DRAWN, _NUM_NEAR = 1024, 256
_STEP = 0.05  # Standard deviation of points near the best trial, in the unit cube.
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Improvement:
    """The room for improvement after some trials, in the units of the reward or metric.

    Attributes:
        trial: the last of the trials.
        room: the optimistic value of the best point, beyond the pessimistic one of the best trial:
            each an end of an interval of 95 %.
        error: the median error of the predictions of trials that the model has not seen, of the
            better half of the trials.
    """

    trial: 'Trial'
    room: float
    error: float


def improvements(study: 'StudyView', reward: str | None = None) -> tuple[Axis, list[Improvement]]:
    """Computes the room for improvement after the first trials, after more, and after all.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.

    Returns:
        The reward or metric, and the room after up to 10 numbers of completed trials. None of them
        has fewer than `surrogate.MIN_TRIALS` trials, or equal values alone.

    Raises:
        UserError: the study has no such reward or metric.
    """
    axis, space = axis_of(study, reward), FlatSpace(study.space.spec)
    completed, infeasible = sampled_trials(study, axis)
    counts = np.linspace(MIN_TRIALS, len(completed), _MOST_FITS).round().astype(int)
    found = []
    for count in np.unique(counts[(counts >= MIN_TRIALS) & (counts <= len(completed))]):
        last = completed[count - 1]
        known = [each for each in infeasible if each.id < last.id]
        model = fit(axis, space, completed[:count], known)
        if model is not None:
            found.append(Improvement(last, _room(model), _error(model)))
    return axis, found


def _room(model: Surrogate) -> float:
    rng = np.random.default_rng(_SEED)
    best = model.rows([model.best])
    near = best + _STEP * rng.normal(size=(_NUM_NEAR, best.shape[1]))
    drawn = rng.random((_NUM_DRAWN, best.shape[1]))
    points = model.predict(np.concatenate([best, np.clip(near, 0.0, 1.0), drawn]))
    trials = model.predict(model.rows(model.trials))
    if model.axis.is_maximized:
        return max(float(points.high.max() - trials.low.max()), 0.0)
    return max(float(trials.high.min() - points.low.min()), 0.0)


def _error(model: Surrogate) -> float:
    found = model.cross_validate()
    scores = model.axis.sign * found.observed
    is_better = scores >= np.median(scores)
    return float(np.median(np.abs(found.observed - found.predicted.mean)[is_better]))
