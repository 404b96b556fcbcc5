"""Aggregation of measurements over steps: final metrics of a trial."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import pyglove as pg

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.metrics import Metric, MissingMetricError, as_metric, join_name, split_name
from trainer.symbolic.component import Component, require_at_least
from trainer.symbolic.errors import UserError

ScoreFunction = Callable[[float], float]


class NothingMeasuredError(Exception):
    """A trial has no measurement for final metrics."""


class MetricAggregation(Component):
    """Aggregates measurements to final metrics; NaN and infinite values are ignored."""

    @property
    def needs_reward(self) -> bool:
        """True if it requires exactly one reward."""
        return False

    def final(
        self, measurements: Sequence[Measurement], score: ScoreFunction | None = None
    ) -> dict[str, float]:
        """Final metrics of one experiment.

        Args:
            measurements: its measurements by step; metric names have no sub-experiment.
            score: converts the only reward to a score, larger is better; None if there is no such
                reward.

        Raises:
            MissingMetricError: a required metric is in none of them.
            NothingMeasuredError: there are none, or none with a required finite metric.
            UserError: the reward is required, and there is not exactly one.
        """
        raise NotImplementedError(type(self).__name__)


class LastStep(MetricAggregation):
    """Last value of each metric.

    Example:
        >>> steps = [Measurement(1, {'loss': 3.0, 'bleu': 0.1}), Measurement(2, {'loss': 2.0})]
        >>> LastStep().final(steps)
        {'loss': 2.0, 'bleu': 0.1}
    """

    def final(
        self, measurements: Sequence[Measurement], score: ScoreFunction | None = None
    ) -> dict[str, float]:
        return {name: values[-1] for name, values in finite_values(measurements).items()}


class MeanOfSteps(MetricAggregation):
    """Mean of each metric.

    Attributes:
        last_n: number of last values to average; None for all.

    Example:
        >>> steps = [Measurement(step, {'loss': 8.0 / step}) for step in (1, 2, 4)]
        >>> MeanOfSteps(last_n=2).final(steps)
        {'loss': 3.0}
    """

    last_n: int | None = None

    def check(self) -> None:
        require_at_least(self, 1, 'last_n')

    def final(
        self, measurements: Sequence[Measurement], score: ScoreFunction | None = None
    ) -> dict[str, float]:
        return {
            name: statistics.mean(values if self.last_n is None else values[-self.last_n :])
            for name, values in finite_values(measurements).items()
        }


class BestStep(MetricAggregation):
    """All metrics of the best step; the last one wins a tie.

    Attributes:
        metric: metric that defines the best step; None for the reward, if there is exactly one and
            no sub-experiments.
        mode: whether large or small values of the metric are better; given with a metric.

    Example:
        >>> steps = [
        ...     Measurement(step, {'loss': abs(step - 2.0), 'lr': 1 / step}) for step in (1, 2)
        ... ]
        >>> BestStep('loss', 'min').final(steps)
        {'loss': 0.0, 'lr': 0.5}
    """

    metric: str | Metric | None = None
    mode: Literal['max', 'min'] | None = None

    def check(self) -> None:
        if (self.metric is None) != (self.mode is None):
            raise ValueError(
                'metric and mode must be given together; the mode of a reward is its goal'
            )
        if self.metric is not None:
            metric = as_metric(self.metric)
            if metric.sub_experiment is not None or split_name(metric.name)[1] is not None:
                raise ValueError(
                    f'metric must not name a sub-experiment, because each has its own best step: '
                    f'{metric.label}'
                )

    @property
    def needs_reward(self) -> bool:
        return self.metric is None

    def final(
        self, measurements: Sequence[Measurement], score: ScoreFunction | None = None
    ) -> dict[str, float]:
        if self.metric is None:
            scores = self._by_reward(measurements, score)
        else:
            scores = self._by_metric(measurements, as_metric(self.metric))
        finite = [(value, i) for i, value in scores if math.isfinite(value)]
        if not finite:
            what = 'reward' if self.metric is None else as_metric(self.metric).label
            raise NothingMeasuredError(f'no step has a finite {what}')
        _, best = max(finite)
        return dict(_finite(measurements[best].metrics))

    def _by_reward(
        self, measurements: Sequence[Measurement], score: ScoreFunction | None
    ) -> Iterator[tuple[int, float]]:
        if score is None or any(len(each.rewards) > 1 for each in measurements):
            where = f'{self.sym_path}: ' if self.sym_path else ''
            raise UserError(
                f'{where}BestStep needs a metric and a mode unless the search has exactly one '
                'reward and no sub-experiments'
            )
        return (
            (i, score(each.reward))
            for i, each in enumerate(measurements)
            if each.reward is not None
        )

    def _by_metric(
        self, measurements: Sequence[Measurement], metric: Metric
    ) -> Iterator[tuple[int, float]]:
        sign = 1 if self.mode == 'max' else -1
        path = str(pg.KeyPath('metric', self.sym_path))
        matching = [i for i, each in enumerate(measurements) if metric.matches(each.metrics)]
        if measurements and not matching:
            # Raises, with a suggestion of similar names.
            metric.value({name: 0.0 for each in measurements for name in each.metrics}, path)
        return ((i, sign * metric.value(measurements[i].metrics, path)) for i in matching)


def final_metrics(
    metric_aggregation: MetricAggregation,
    measurements: Iterable[Measurement],
    score: ScoreFunction | None = None,
) -> dict[str, float]:
    """Final metrics of a trial; each sub-experiment is aggregated separately.

    Metrics without a sub-experiment, beside others with one, belong to the whole trial. They have
    their last values if they lack metrics that the aggregation requires. `score` is as in
    `MetricAggregation.final`.

    Raises:
        MissingMetricError: a required metric was not measured.
        NothingMeasuredError: nothing was measured, or nothing finite.
        UserError: the reward is required, and there is not exactly one, or there are several
            sub-experiments.

    Example:
        >>> steps = [
        ...     Measurement(1, {'loss:short': 5.0, 'loss:long': 7.0}),
        ...     Measurement(2, {'loss:long': 6.0}),
        ... ]
        >>> final_metrics(LastStep(), steps)
        {'loss:short': 5.0, 'loss:long': 6.0}
    """
    parts = _by_sub_experiment(sorted(measurements, key=lambda each: each.step))
    if not parts:
        raise NothingMeasuredError('nothing was measured')
    several = len(parts.keys() - {None}) > 1
    final: dict[str, float] = {}
    for sub_experiment, part in parts.items():
        try:
            metrics = metric_aggregation.final(part, None if several else score)
        except (MissingMetricError, NothingMeasuredError) as error:
            if sub_experiment is not None:
                raise type(error)(f'{error} (sub-experiment {sub_experiment})') from error
            if len(parts) == 1:
                raise
            metrics = LastStep().final(part)
        final |= {join_name(name, sub_experiment): value for name, value in metrics.items()}
    return final


def _by_sub_experiment(measurements: Iterable[Measurement]) -> dict[str | None, list[Measurement]]:
    """Measurements by sub-experiment; None is the key for the whole trial."""
    parts: dict[str | None, list[Measurement]] = {}
    for measurement in measurements:
        metrics: dict[str | None, dict[str, float]] = {}
        for name, value in measurement.metrics.items():
            base, sub_experiment = split_name(name)
            metrics.setdefault(sub_experiment, {})[base] = value
        for sub_experiment, own in metrics.items():
            part = Measurement(measurement.step, own, measurement.rewards)
            parts.setdefault(sub_experiment, []).append(part)
    return parts


def finite_values(measurements: Iterable[Measurement]) -> dict[str, list[float]]:
    """Returns the finite values of each metric by step.

    Raises:
        NothingMeasuredError: there are none.
    """
    values: dict[str, list[float]] = {}
    for measurement in measurements:
        for name, value in _finite(measurement.metrics):
            values.setdefault(name, []).append(value)
    if not values:
        raise NothingMeasuredError('nothing finite was measured')
    return values


def _finite(metrics: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in metrics.items() if math.isfinite(value))
