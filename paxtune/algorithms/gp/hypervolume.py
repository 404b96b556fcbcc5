"""Expected hypervolume improvement of several rewards, with a Gaussian process for each."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paxtune.algorithms.encoding.points import EncodingSpec
from paxtune.algorithms.gp import model
from paxtune.algorithms.gp.acquisition import (
    LOG_DEVIATION_SHARE,
    Acquisition,
    AcquisitionContext,
    learnable_deviation,
    log_expected_improvement,
)
from paxtune.algorithms.gp.model import Array, Posterior
from paxtune.objectives import pareto

_MARGIN = 0.1  # From the worst scores of the front to the reference, in spans of the front.
_MAX_FRONT = {2: 512, 3: 64, 4: 24}  # Points, by the number of rewards.
_MIN_FALL = 1e-12  # A smaller difference of two logarithms is rounding alone.


class Boxes(NamedTuple):
    """Disjoint boxes of scores that no point of a front dominates.

    Attributes:
        low: lower corners [boxes, rewards].
        high: upper corners [boxes, rewards]; infinite where nothing bounds them.
    """

    low: Array
    high: Array


def undominated_boxes(front: Array, reference: Array) -> Boxes:
    """Divides the scores above a reference that no point of a front dominates into boxes.

    Args:
        front: points [points, rewards]; more is better.
        reference: scores [rewards].

    Example:
        >>> boxes = undominated_boxes(np.array([[1.0, 2.0]]), np.zeros(2))
        >>> boxes.low.tolist(), boxes.high.tolist()
        ([[1.0, 0.0], [0.0, 2.0]], [[inf, inf], [1.0, inf]])
    """
    low, high = reference[None], np.full((1, len(reference)), np.inf)
    for point in front[np.argsort(-front[:, 0], kind='stable')]:
        is_cut = (low < point).all(axis=1)
        parts = [(low[~is_cut], high[~is_cut])]
        left, right = low[is_cut], high[is_cut].copy()
        for reward, score in enumerate(point):
            # Beyond the point in this reward, and not beyond it in those before.
            beyond = left.copy()
            beyond[:, reward] = np.maximum(beyond[:, reward], score)
            is_valid = (beyond < right).all(axis=1)
            parts.append((beyond[is_valid], right[is_valid]))
            right = right.copy()
            right[:, reward] = np.minimum(right[:, reward], score)
        low, high = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Boxes(low, high)


def boxes_beyond(scores: Array) -> Boxes:
    """Boxes beyond the front of some scores [trials, rewards], above a reference near its worst.

    The reference is a tenth of the front's span below the worst score of the front in each reward.
    A large front of three or four rewards is thinned out to its least crowded points.
    """
    points = np.unique(scores[pareto.front(scores.tolist())], axis=0)
    most = _MAX_FRONT[scores.shape[1]]
    if len(points) > most:
        distances = pareto.crowding_distances(points.tolist())
        points = points[np.argsort(-np.array(distances), kind='stable')[:most]]
    # Scores have variance 1: a front of one point has a span, too.
    span = np.maximum(np.ptp(points, axis=0), 1.0)
    return undominated_boxes(points, points.min(axis=0) - _MARGIN * span)


class _Edges:
    """Expected improvements of one reward over all ends of boxes.

    Attributes:
        terms: logarithm of the mean length that a score covers of each box [B, boxes].
    """

    def __init__(self, mean: Array, deviation: Array, low: Array, high: Array) -> None:
        ends, where = np.unique(np.concatenate([low, high]), return_inverse=True)
        self._low, self._high = where[: len(low)], where[len(low) :]
        is_finite = np.isfinite(ends)
        finite = ends[is_finite]
        value, slope = log_expected_improvement(mean[:, None], deviation[:, None], finite)
        self._z, self._slope = (mean[:, None] - finite) / deviation[:, None], slope
        self._deviation, self._is_finite = deviation[:, None], is_finite
        pad = np.full((len(mean), len(ends)), -np.inf)
        pad[:, is_finite] = value
        fall = np.maximum(pad[:, self._low] - pad[:, self._high], _MIN_FALL)
        self._fall = fall
        self.terms = pad[:, self._low] + np.log(-np.expm1(-fall))

    def slopes(self) -> tuple[Array, Array]:
        """Derivatives of the terms by the mean and by the deviation: each [B, boxes]."""
        with np.errstate(over='ignore'):
            ratio = 1.0 / np.expm1(self._fall)  # 0 for a box without an upper end.
        found = []
        for slope in (self._slope, 1.0 - self._z * self._slope):
            pad = np.zeros((len(slope), len(self._is_finite)))
            pad[:, self._is_finite] = slope / self._deviation
            at_low = pad[:, self._low]
            found.append(at_low + (at_low - pad[:, self._high]) * ratio)
        return found[0], found[1]


class HypervolumeAcquisition(Acquisition):
    """Logarithm of the expected hypervolume improvement of rows of unit values, and its gradient.

    The processes are independent, so the expectation over a box is a product of differences of
    expected improvements: it is exact, and no samples are drawn. As for one reward, the improvement
    is the one of the models' means after the trial.

    Emmerich, Giannakoglou, Naujoks 2006 (IEEE TEC 10); by boxes: Yang et al. 2019 (Journal of
    Global Optimization 75); logarithm: Ament et al. 2023 (arXiv 2310.20708).
    """

    def __init__(
        self,
        encoding: EncodingSpec,
        posteriors: Sequence[Posterior],
        context: AcquisitionContext,
        boxes: Boxes,
    ) -> None:
        super().__init__('log_ei', encoding, posteriors[0], context)
        self._posteriors, self._boxes = posteriors, boxes

    def _value_at(self, points: Array) -> Array:
        return self._parts(points)[2]

    def _slope_at(self, points: Array) -> Array:
        at, edges, value, improvement = self._parts(points)
        # Weights of the boxes, and the share of the improvement beside the deviations.
        weights = np.exp(sum(each.terms for each in edges) - improvement[:, None])
        feasible = sum(each.feasible for each in at) / len(at)
        share = np.exp(improvement - (value - feasible))
        found = np.zeros_like(points)
        for posterior, each, edge in zip(self._posteriors, at, edges, strict=True):
            _, by_process = learnable_deviation(each.deviation, posterior.noise)
            by_mean, by_deviation = (np.sum(weights * slope, axis=1) for slope in edge.slopes())
            found += model.gradient(
                posterior,
                each,
                share * by_mean,
                share * by_process * by_deviation + (1 - share) / each.deviation,
                np.full(len(points), 1.0 / len(at)),
            )
        return found

    def _parts(self, points: Array) -> tuple[list[model.Prediction], list[_Edges], Array, Array]:
        """Predictions, terms of boxes, value [B] and logarithm of the improvement [B]."""
        at = [model.predict(posterior, points) for posterior in self._posteriors]
        edges = [
            _Edges(
                each.mean,
                learnable_deviation(each.deviation, posterior.noise)[0],
                self._boxes.low[:, reward],
                self._boxes.high[:, reward],
            )
            for reward, (posterior, each) in enumerate(zip(self._posteriors, at, strict=True))
        ]
        terms = sum(each.terms for each in edges)
        largest = terms.max(axis=1)
        improvement = largest + np.log(np.sum(np.exp(terms - largest[:, None]), axis=1))
        deviations = sum(np.log(each.deviation) for each in at)
        value = np.logaddexp(improvement, LOG_DEVIATION_SHARE + deviations)
        return at, edges, value + sum(each.feasible for each in at) / len(at), improvement
