"""Predicts the final scores of trials from early ones, and from their decisions."""

import itertools
import math
from typing import NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Mask: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

MIN_TRIALS = 4
"""Trials without which no gain is predicted."""

_SLOPE_SCALES = (0.0, 0.05, 0.15, 0.5)
_NOISE_SCALES = (0.05, 0.15, 0.5, 1.5)
"""The standard deviations, a priori, of slopes and of residuals, by the spread of the gains."""

_NO_SLOPES, _NO_SLOPES_EACH = 6.0, 0.25
"""The logarithm of the prior odds that all trials gain the same: in all, and for each trial.

The larger one counts. Gains are not quite linear. With many trials any small effect is evident, and
a line orders the best trials worse than their scores do.
"""

_OUTLIER = 2.0
"""The spreads by which a score that counts lies below the median at most."""

_WIDEST = 3.0
"""The same for gains, on both sides."""


def predict_ends(scores: Array, points: Array) -> Array:
    """Predicts the final score of each trial from its score at each level.

    The gain from a level to the next one is linear in the decisions and in the score, with normal
    priors. Trials that have reached both show it. A long warm-up, for example, delays a trial, and
    it gains more later. The prior's deviations are averaged over, by their evidence. A priori the
    gain is most likely the same for all trials. Where decisions do not explain it, predictions keep
    about the order of the scores.

    If too few trials have reached the next level, trials that ended before it show the gain.
    Without any, there is no gain.

    Trials that went on were selected by the scores and decisions that explain the gain. Where it is
    linear, this selection does not bias it.

    Bayesian linear regression: Bishop 2006, Pattern Recognition and Machine Learning, chapter 3.

    Args:
        scores: [trials, levels + 1]; the last ones are final. NaN where there is none.
        points: the decisions, [trials, columns], from 0 to 1: see
            `paxtune.algorithms.encoding.points`.

    Returns:
        [trials, levels]; NaN where a trial has not reached the level.

    Example:
        >>> decision = np.linspace(0.0, 1.0, 16)
        >>> early = np.sin(99.0 * decision) - 0.4 * decision
        >>> late = early + 2.0 + 0.8 * decision
        >>> late[::2] = np.nan  # These trials were stopped.
        >>> predicted = predict_ends(np.stack([early, late], axis=1), decision[:, None])
        >>> [round(float(gain), 1) for gain in (predicted[:, 0] - early)[[0, 8, 14]]]
        [2.1, 2.4, 2.7]
    """
    with np.errstate(over='ignore', invalid='ignore'):  # Scores may be near the largest number.
        end = scores.shape[1] - 1
        jumps = [_jump(scores, points, level) for level in range(end)]
        predicted = np.full((len(scores), end), math.nan)
        for level in range(end):
            rows = np.isfinite(scores[:, level])
            values, at = scores[rows, level], level
            while at < end:
                gain, at = jumps[at]
                values = values if gain is None else values + gain(values, points[rows])
            predicted[rows, level] = np.where(np.isfinite(values), values, scores[rows, level])
        return predicted


class _Gain(NamedTuple):
    """A gain that is linear in decisions and scores.

    Attributes:
        mean: the gain of a trial in the middle of the trials that show it.
        middle: decisions and score of that trial.
        slopes: of the gain, by them.
        spread: of the scores, which are divided by it.
        least: lower scores count as this one.
    """

    mean: float
    middle: Array
    slopes: Array
    spread: float
    least: float

    def __call__(self, scores: Array, points: Array) -> Array:
        inputs = _inputs(np.maximum(scores, self.least), points, self.spread)
        return self.mean + (inputs - self.middle) @ self.slopes


def _inputs(scores: Array, points: Array, spread: float) -> Array:
    return np.concatenate([points, scores[:, None] / spread], axis=1)


def _jump(scores: Array, points: Array, level: int) -> tuple[_Gain | None, int]:
    """The gain from a level, and the level that it leads to: the next one, or the end."""
    for later in (level + 1, scores.shape[1] - 1):
        both = np.isfinite(scores[:, level]) & np.isfinite(scores[:, later])
        if both.sum() >= MIN_TRIALS:
            return _fit(scores[:, level], scores[:, later], both, points), later
    return None, level + 1


def _fit(early: Array, late: Array, both: Mask, points: Array) -> _Gain:
    """Fits the gain from one level to the next; `both` marks the trials that have reached both."""
    low, median, high = np.quantile(early[np.isfinite(early)], (0.25, 0.5, 0.75))
    spread = max(float(high - low), 1e-9)
    least = float(median) - _OUTLIER * spread
    gains = late[both] - early[both]
    low, center, high = np.quantile(gains, (0.25, 0.5, 0.75))
    width = spread
    if high - low > 2 * _WIDEST * spread:  # Scores are about equal early, and far apart later.
        width = float(high - low)
    gains = np.clip(gains, center - _WIDEST * width, center + _WIDEST * width)
    inputs = _inputs(np.maximum(early[both], least), points[both], spread)
    middle, mean = inputs.mean(axis=0), gains.mean()
    slopes = width * _slopes(inputs - middle, (gains - mean) / width)
    return _Gain(float(mean), middle, slopes, spread, least)


def _slopes(inputs: Array, gains: Array) -> Array:
    """The expected slopes [columns] of centered gains [N] by centered inputs [N, columns]."""
    left, sizes, right = np.linalg.svd(inputs, full_matrices=False)
    along = left.T @ gains
    unexplained = max(float(gains @ gains - along @ along), 0.0)
    others = len(gains) - 1 - len(sizes)
    no_slopes = max(_NO_SLOPES, _NO_SLOPES_EACH * len(gains))
    evidence, found = [], []
    for slope, noise in itertools.product(_SLOPE_SCALES, _NOISE_SCALES):
        variances = (slope * sizes) ** 2 + noise**2
        evidence.append(
            -0.5 * float(np.sum(along**2 / variances + np.log(variances)))
            - 0.5 * (unexplained / noise**2 + others * 2.0 * math.log(noise))
            + (0.0 if slope else no_slopes)
        )
        found.append(slope**2 * sizes / variances * along)
    weights = np.exp(np.array(evidence) - max(evidence))
    return right.T @ (weights @ np.array(found) / weights.sum())
