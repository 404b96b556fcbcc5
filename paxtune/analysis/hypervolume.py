"""Hypervolume: how much of the space of rewards a set of trials dominates, and its history.

The hypervolume of points is the volume between a reference point and their Pareto front. It grows
with each trial that is on the front of the trials before it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from paxtune.objectives import pareto
from paxtune.study.columns import reward_columns
from paxtune.study.record import Status
from trainer.symbolic.errors import UserError, nearest

if TYPE_CHECKING:
    from paxtune.study.study_view import StudyView
    from paxtune.study.trial import Trial

Array: TypeAlias = np.ndarray

_MARGIN = 0.1  # A share of the span of a reward: from its worst value to the default reference.


@dataclasses.dataclass(frozen=True)
class HypervolumeHistory:
    """The hypervolume after each completed trial.

    Attributes:
        rewards: labels of the rewards.
        reference: the value of each reward at the reference point.
        trials: the completed trials, by id.
        volumes: the hypervolume of the trials up to each one: [trials], float64.
    """

    rewards: list[str]
    reference: list[float]
    trials: 'Sequence[Trial]'
    volumes: Array


def _volume(heights: Array) -> float:
    """The volume that a front [points, scores] dominates above 0.

    It is the sum of the volumes that points add to later ones (WFG, While et al. 2012).
    """
    if not len(heights):
        return 0.0
    heights = heights[np.argsort(-heights[:, 0], kind='stable')]
    if heights.shape[1] == 1:
        return float(heights[0, 0])
    if heights.shape[1] == 2:
        # In order of the first score, the second one ascends along a front.
        above = np.maximum.accumulate(heights[:, 1])
        return float(heights[:, 0] @ np.diff(above, prepend=0.0))
    return float(sum(_added(heights[index], heights[index + 1 :]) for index in range(len(heights))))


def _added(point: Array, others: Array) -> float:
    """The volume that a point dominates and others do not."""
    shared = np.unique(np.minimum(others, point), axis=0)
    shared = shared[pareto.front([tuple(each) for each in shared])]
    return float(point.prod()) - _volume(shared)


def hypervolume_history(
    study: 'StudyView', reference: Mapping[str, float] | None = None
) -> HypervolumeHistory:
    """Computes the hypervolume of a study of several rewards after each completed trial.

    Args:
        study: the study.
        reference: the value of each reward, by its label, beyond which a trial counts. By default
            the worst value of a completed trial, and a tenth of the span of all values beyond it.

    Raises:
        UserError: the study has fewer than two rewards, or the reference does not name exactly
            them.
    """
    labels = reward_columns(study.rewards)
    if len(labels) < 2:
        raise UserError(f'a hypervolume needs two or more rewards; the study has {len(labels)}')
    _require_labels(labels, reference)
    signs = np.array([1.0 if each.goal == 'maximize' else -1.0 for each in study.rewards])
    completed = [each for each in study.trials if each.status is Status.COMPLETED and each.rewards]
    scores = signs * np.array([each.rewards for each in completed], float).reshape(-1, len(labels))
    if reference is not None:
        base = signs * [reference[label] for label in labels]
    elif len(scores):
        base = scores.min(axis=0) - _MARGIN * (np.ptp(scores, axis=0) + 1e-12)
    else:
        base = np.full(len(labels), np.nan)
    return HypervolumeHistory(
        labels, list(map(float, signs * base)), completed, volumes(scores, base)
    )


def volumes(scores: Array, reference: Array) -> Array:
    """Computes the volume above a reference that the scores up to each one dominate: [trials].

    More is better in all scores. One that is not above the reference in all adds nothing. The time
    grows quickly with the number of scores: it is meant for up to five.

    Example:
        >>> volumes(np.array([[2.0, 1.0], [1.0, 3.0], [1.0, 1.0]]), np.zeros(2))
        array([2., 4., 4.])
    """
    heights = scores - reference
    found = np.zeros(len(heights))
    front, volume = heights[:0], 0.0
    for index, height in enumerate(heights):
        # Only a trial that no earlier one equals or beats changes the volume.
        if (height > 0).all() and not (front >= height).all(axis=1).any():
            front = np.vstack([front[~(front <= height).all(axis=1)], height])
            volume = _volume(front)
        found[index] = volume
    return found


def _require_labels(labels: Sequence[str], reference: Mapping[str, float] | None) -> None:
    if reference is None:
        return
    for name in reference:
        if name not in labels:
            hint = nearest(name, labels) or f'There are {", ".join(labels)}.'
            raise UserError(f'{name}: there is no such reward. {hint}')
    if missing := [label for label in labels if label not in reference]:
        raise UserError(f'the reference has no value of {", ".join(missing)}')
