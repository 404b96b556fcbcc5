"""Predictions of the Gaussian process that the default algorithm uses, fitted to a study.

The model of `paxtune.algorithms.gp` is fitted to the final values of completed trials. It sees them
on a warped scale, on which diverged runs do no harm; its predictions are returned in the units of
the reward. Stopped trials do not count: their last values are not final ones.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp.blas import one_blas_thread
from paxtune.analysis.trade_off import Axis, axis_of, value_of_trial
from paxtune.study.record import Status

if TYPE_CHECKING:
    from paxtune.algorithms.encoding.points import EncodingSpec
    from paxtune.algorithms.gp.model import Posterior
    from paxtune.study.study_view import StudyView
    from paxtune.study.trial import Trial

Array: TypeAlias = np.ndarray

MIN_TRIALS = 5
"""Completed trials below which no model is fitted."""

_MAX_TRIALS = 256
_MAX_FEATURES = 300  # As the algorithm.
_WIDTH = 1.959964  # Standard deviations of the half of an interval of 95 %.
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Predictions of points, in the units of the reward or metric.

    Attributes:
        mean: the median of each prediction: [points], float64.
        low: the lower end of the interval of 95 %: [points].
        high: the upper end: [points].
    """

    mean: Array
    low: Array
    high: Array


@dataclasses.dataclass(frozen=True)
class CrossValidation:
    """Predictions of trials, each by a model that has not seen it.

    Attributes:
        axis: the reward or metric.
        trials: the trials.
        observed: their final values: [trials], float64.
        predicted: their predictions.
        r_squared: the share of the variance that the predictions explain, on the warped scale: 1
            is perfect, and 0 as good as the mean of all trials.
        coverage: the share of trials within their intervals of 95 %.
    """

    axis: Axis
    trials: 'Sequence[Trial]'
    observed: Array
    predicted: Predictions
    r_squared: float
    coverage: float


class _Units:
    """The scale of scores, from warped scores; it continues beyond the best trial."""

    def __init__(self, scores: Array, warped: Array) -> None:
        self._scores, first = np.unique(scores, return_index=True)
        self._warped = warped[first]
        middle = (len(first) - 1) // 2
        rise, run = (each[-1] - each[middle] for each in (self._scores, self._warped))
        self._slope = rise / run if run > 0 else 0.0

    def __call__(self, warped: Array) -> Array:
        beyond = np.maximum(warped - self._warped[-1], 0.0)
        found: Array = np.interp(warped, self._warped, self._scores) + self._slope * beyond
        return found


@dataclasses.dataclass(frozen=True)
class Surrogate:
    """A model of a study; `fitted` makes it.

    Attributes:
        axis: the reward or metric.
        space: the space, whose rows it predicts.
        trials: the completed trials that it was fitted to.
        values: the final values of `trials`: [trials], float64.
        warped: the values on the scale of the model, larger is better: [trials], float64.
        posterior: the fitted process.
    """

    axis: Axis
    space: FlatSpace
    trials: 'Sequence[Trial]'
    values: Array
    warped: Array
    posterior: 'Posterior'
    _encoding: 'EncodingSpec'

    @property
    def best(self) -> 'Trial':
        """The best of the trials."""
        return self.trials[int(np.argmax(self.axis.sign * self.values))]

    def rows(self, trials: 'Sequence[Trial]') -> Array:
        """Encodes trials as rows of the unit cube; inactive decisions are in the middle."""
        return _rows(self.space, trials)

    def predict(self, rows: Array) -> Predictions:
        """Predicts rows of the unit cube [points, features]."""
        from paxtune.algorithms.encoding.points import encoder
        from paxtune.algorithms.gp import model

        _, points, _ = encoder(self._encoding)(rows)
        found = model.predict(self.posterior, points)
        return self.in_units(found.mean, found.deviation)

    def cross_validate(self) -> CrossValidation:
        """Predicts each trial without it; length scales and noise are fitted to all trials."""
        inverse = self.posterior.inverse_cholesky[:, : len(self.trials)]
        precision = np.sum(inverse**2, axis=0)
        weights = self.posterior.weights[: len(self.trials)]
        errors, deviation = weights / precision, precision**-0.5
        predicted = self.in_units(self.warped - errors, deviation)
        return CrossValidation(
            self.axis,
            self.trials,
            self.values,
            predicted,
            float(1.0 - np.sum(errors**2) / np.sum((self.warped - self.warped.mean()) ** 2)),
            float(np.mean(np.abs(errors) <= _WIDTH * deviation)),
        )

    def in_units(self, mean: Array, deviation: Array) -> Predictions:
        """Converts predictions on the scale of the model to the units of the reward."""
        sign = self.axis.sign
        units = _Units(sign * self.values, self.warped)
        worse, middle, better = (sign * units(mean + k * deviation) for k in (-_WIDTH, 0, _WIDTH))
        return Predictions(middle, np.minimum(worse, better), np.maximum(worse, better))


def fitted(study: 'StudyView', reward: str | None = None) -> Surrogate | None:
    """Fits the model to a study.

    Of more than 256 completed trials, 256 drawn at random count. The same trials make the same
    model.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.

    Returns:
        The model; None with fewer than `MIN_TRIALS` completed trials, if all of them have the same
        value, or if the space has more than 300 decisions.

    Raises:
        UserError: the study has no such reward or metric.

    Example:
        >>> import paxtune, pyglove as pg
        >>> space = {'x': pg.floatv(-1.0, 1.0)}
        >>> study = paxtune.tune(lambda x: x**2, space=space, objective='minimize', num_trials=9)
        >>> model = fitted(study)
        >>> bool(model.cross_validate().r_squared > 0.5)
        True
    """
    axis, space = axis_of(study, reward), FlatSpace(study.space.spec)
    trials = _drawn([each for each in study.trials if _is_final(axis, each)])
    values = np.array([value_of_trial(axis, each) for each in trials], float)
    if len(values) < MIN_TRIALS or np.ptp(values) == 0.0 or not 0 < len(space) <= _MAX_FEATURES:
        return None
    # Imported here: `scipy.stats` takes a second.
    from paxtune.algorithms.encoding.points import encoder, encoding_spec
    from paxtune.algorithms.gp import model
    from paxtune.algorithms.gp.warping import warp

    encoding = encoding_spec(space)
    _, points, _ = encoder(encoding)(_rows(space, trials))
    is_observed = np.ones(len(points), bool)
    warped = warp(axis.sign * values)
    data = model.TrainingData(points, warped, is_observed, is_observed, ~is_observed)
    with one_blas_thread():
        theta = model.fit(data, encoding.columns, np.random.default_rng(_SEED))
    posterior = model.posterior(theta, data, encoding.columns)
    return Surrogate(axis, space, trials, values, warped, posterior, encoding)


def _is_final(axis: Axis, trial: 'Trial') -> bool:
    return trial.status is Status.COMPLETED and bool(np.isfinite(value_of_trial(axis, trial)))


def _rows(space: FlatSpace, trials: 'Sequence[Trial]') -> Array:
    return np.nan_to_num(np.stack([space.encode(each.by_id) for each in trials]), nan=0.5)


def _drawn(trials: 'list[Trial]') -> 'list[Trial]':
    if len(trials) <= _MAX_TRIALS:
        return trials
    rng = np.random.default_rng(_SEED)
    return [trials[index] for index in np.sort(rng.choice(len(trials), _MAX_TRIALS, replace=False))]
