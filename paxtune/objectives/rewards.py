"""Rewards: the numbers by which trials are compared."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import pyglove as pg

from paxtune.objectives.metrics import Metric, MissingMetricError, as_metric, split_name
from trainer.symbolic.component import Component


class NonFiniteRewardError(Exception):
    """The reward is NaN or infinite, or has no value at all: the trial is infeasible."""


class Reward(Component):
    """Makes a reward of the metrics that were measured at one step.

    Subclasses override `compute`, and `metrics`.

    Attributes:
        goal: whether small or large rewards are good.
        reward_for_nan: the reward in place of one that is NaN. With None such a trial is
            infeasible, as it always is where the reward is infinite.
    """

    goal: Literal['minimize', 'maximize']
    reward_for_nan: float | None = None

    def _on_bound(self) -> None:
        super()._on_bound()
        # To look a field up takes PyGlove microseconds, and scores are compared by thousands.
        self._maximizes = self.sym_init_args.get('goal') == 'maximize'

    def check(self) -> None:
        if self.reward_for_nan is not None and not math.isfinite(self.reward_for_nan):
            raise ValueError(f'reward_for_nan must be finite: {self.reward_for_nan}')

    @property
    def label(self) -> str:
        """What people are shown as its name."""
        return type(self).__name__

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that it is made of, as far as they are known beforehand."""
        return []

    def compute(self, metrics: Mapping[str, float]) -> float:
        """The reward, finite or not.

        Raises:
            MissingMetricError: a metric that it needs was not measured.
            NonFiniteRewardError: there is none for these metrics.
            UserError: a metric that it needs is ambiguous.
        """
        raise NotImplementedError(type(self).__name__)

    def value(self, metrics: Mapping[str, float]) -> float:
        """The reward.

        Args:
            metrics: all metrics that were measured at one step, by name.

        Raises:
            MissingMetricError: a metric that it needs was not measured.
            NonFiniteRewardError: it is infinite, or NaN without `reward_for_nan`, or there is none.
            UserError: a metric that it needs is ambiguous.
        """
        reward = float(self.compute(metrics))
        if math.isnan(reward) and self.reward_for_nan is not None:
            return self.reward_for_nan
        if not math.isfinite(reward):
            raise NonFiniteRewardError(f'the reward is {reward}')
        return reward

    def score(self, reward: float) -> float:
        """A reward with its sign such that more is better."""
        return reward if self._maximizes else -reward

    def _measured(
        self, metric: str | Metric, metrics: Mapping[str, float], *field: str | int
    ) -> float:
        """The value of the metric that stands in a field."""
        return as_metric(metric).value(metrics, str(pg.KeyPath(list(field), self.sym_path)))


@pg.use_init_args(['goal', 'metric', 'reward_for_nan'])
class MetricReward(Reward):
    """One metric.

    Attributes:
        goal: whether small or large values are good.
        metric: for example 'eval/bits_per_byte'.

    Example:
        >>> reward = MetricReward('minimize', 'eval/loss')
        >>> reward.value({'eval/loss': 0.5, 'eval/accuracy': 0.9})
        0.5
        >>> reward.score(0.5) > reward.score(0.7)
        True
    """

    metric: str | Metric

    @property
    def label(self) -> str:
        return as_metric(self.metric).label

    @property
    def metrics(self) -> list[Metric]:
        return [as_metric(self.metric)]

    def compute(self, metrics: Mapping[str, float]) -> float:
        return self._measured(self.metric, metrics, 'metric')


# Declared by name: the class has a property that is called like this field, and made of it.
_METRICS = pg.typing.List(pg.typing.Union([pg.typing.Str(), pg.typing.Object(Metric)]))


@pg.use_init_args(['goal', 'metrics', 'weights', 'reward_for_nan'])
@pg.members([('metrics', _METRICS)])
class WeightedSum(Reward):
    """Several metrics, summed with weights and divided by the sum of the weights' sizes.

    Attributes:
        goal: whether small or large sums are good.
        metrics: what is summed, as a list of metrics or of their names.
        weights: a weight for each, not all zero. One below zero turns a metric around.

    Example:
        >>> reward = WeightedSum('minimize', ['eval/loss', 'eval/accuracy'], [3.0, -1.0])
        >>> reward.value({'eval/loss': 2.0, 'eval/accuracy': 0.5})
        1.375
    """

    weights: list[float]

    def check(self) -> None:
        super().check()
        if len(self.weights) != len(self.metrics):
            raise ValueError(
                f'there must be a weight for each metric: {len(self.weights)} weights, '
                f'{len(self.metrics)} metrics'
            )
        if not any(self.weights) or not all(map(math.isfinite, self.weights)):
            raise ValueError(f'weights must be finite, and not all 0: {list(self.weights)}')

    @property
    def label(self) -> str:
        terms = zip(self.weights, self.metrics, strict=True)
        return ' + '.join(f'{weight:g} × {metric.label}' for weight, metric in terms)

    @property
    def metrics(self) -> list[Metric]:
        return [as_metric(metric) for metric in self.sym_getattr('metrics')]

    def compute(self, metrics: Mapping[str, float]) -> float:
        total = 0.0
        for i, (weight, metric) in enumerate(zip(self.weights, self.metrics, strict=True)):
            total += weight * self._measured(metric, metrics, 'metrics', i)
        return total / sum(map(abs, self.weights))


class QualityAtCost(Reward):
    """A quality, corrected for how far a cost is from its target. The base of such rewards.

    Attributes:
        metric: the quality, the larger the better.
        cost: what it costs, for example 'num_params' or 'flops_per_token'.
        cost_target: what it may cost, above 0.
        exponent: how much the cost matters: not at all with 0, the more the further below.
        goal: 'maximize', always.
    """

    metric: str | Metric
    cost: str | Metric
    cost_target: float
    exponent: float = -0.07
    goal: Literal['minimize', 'maximize'] = 'maximize'

    def check(self) -> None:
        super().check()
        if not 0 < self.cost_target < math.inf:
            raise ValueError(f'cost_target must be above 0, and finite: {self.cost_target}')
        if not -math.inf < self.exponent <= 0:
            raise ValueError(f'exponent must be finite, and at most 0: {self.exponent}')
        if self.goal != 'maximize':
            raise ValueError(
                f'{type(self).__name__} must be maximized: its metric is a quality, the larger the '
                'better. To weigh a loss against a cost, use WeightedSum.'
            )

    @property
    def label(self) -> str:
        quality, cost = self.metrics
        return f'{type(self).__name__}({quality.label}, {cost.label})'

    @property
    def metrics(self) -> list[Metric]:
        return [as_metric(self.metric), as_metric(self.cost)]

    def compute(self, metrics: Mapping[str, float]) -> float:
        quality = self._measured(self.metric, metrics, 'metric')
        cost = self._measured(self.cost, metrics, 'cost')
        if math.isnan(quality) or math.isnan(cost):
            return math.nan
        if not 0 < cost < math.inf:
            raise NonFiniteRewardError(
                f'{as_metric(self.cost).label} is {cost:.6g}: a cost must be above 0, and finite'
            )
        return self.corrected(quality, cost / self.cost_target)

    def corrected(self, quality: float, ratio: float) -> float:
        """The reward of a quality whose cost is `ratio` times the target."""
        raise NotImplementedError(type(self).__name__)

    def _factor(self, quality: float, ratio: float) -> float:
        if quality < 0:
            # Times a small factor, a costly one below zero would pass for better.
            raise NonFiniteRewardError(
                f'{as_metric(self.metric).label} is {quality:.6g}: {type(self).__name__} is for '
                'metrics from 0 on'
            )
        try:
            return float(ratio**self.exponent)
        except (OverflowError, ZeroDivisionError):
            return math.inf


_QUALITY_AT_COST = ['metric', 'cost', 'cost_target', 'exponent', 'goal', 'reward_for_nan']


@pg.use_init_args(_QUALITY_AT_COST)
class TunasAbsolute(QualityAtCost):
    """The absolute reward of TuNAS (Bender et al. 2020): both ways from the target it falls.

    It is `quality + exponent · |cost / target − 1|`.

    Example:
        >>> reward = TunasAbsolute('eval/accuracy', 'num_params', 1e6, exponent=-0.5)
        >>> [reward.value({'eval/accuracy': 0.75, 'num_params': n}) for n in (1e6, 1.5e6)]
        [0.75, 0.5]
    """

    def corrected(self, quality: float, ratio: float) -> float:
        return quality + self.exponent * abs(ratio - 1)


@pg.use_init_args(_QUALITY_AT_COST)
class MnasHard(QualityAtCost):
    """The hard reward of MnasNet (Tan et al. 2019): it falls beyond the target.

    It is `quality · min((cost / target)^exponent, 1)`, for a quality from 0 on.

    Example:
        >>> reward = MnasHard('eval/accuracy', 'num_params', cost_target=1e6, exponent=-1)
        >>> [reward.value({'eval/accuracy': 0.8, 'num_params': n}) for n in (5e5, 2e6)]
        [0.8, 0.4]
    """

    def corrected(self, quality: float, ratio: float) -> float:
        return quality * min(self._factor(quality, ratio), 1.0)


@pg.use_init_args(_QUALITY_AT_COST)
class MnasSoft(QualityAtCost):
    """The soft reward of MnasNet (Tan et al. 2019): the lower the cost, the better, everywhere.

    It is `quality · (cost / target)^exponent`, for a quality from 0 on.

    Example:
        >>> reward = MnasSoft('eval/accuracy', 'num_params', cost_target=1e6, exponent=-1)
        >>> [reward.value({'eval/accuracy': 0.8, 'num_params': n}) for n in (5e5, 2e6)]
        [1.6, 0.4]
    """

    def corrected(self, quality: float, ratio: float) -> float:
        return quality * self._factor(quality, ratio)


class Objectives(Component):
    """Several rewards at once, none of which is worth more: the study keeps a Pareto front.

    Attributes:
        rewards: at least two, of different labels.

    Example:
        >>> loss = MetricReward('minimize', 'eval/loss')
        >>> objectives = Objectives([loss, MetricReward('minimize', 'num_params')])
        >>> [reward.label for reward in objectives.rewards]
        ['eval/loss', 'num_params']
    """

    rewards: list[Reward]

    def check(self) -> None:
        labels = [reward.label for reward in self.rewards]
        if len(labels) < 2:
            raise ValueError(f'rewards must be at least two: {len(labels)}')
        if len(set(labels)) < len(labels):
            raise ValueError(f'no two rewards may be the same: {", ".join(labels)}')


def search_rewards(reward: Reward | Objectives | None) -> list[Reward]:
    """The rewards of a search: none, one or several."""
    if isinstance(reward, Objectives):
        return list(reward.rewards)
    return [] if reward is None else [reward]


def measured_rewards(
    rewards: Sequence[Reward], metrics: Mapping[str, float], sub_experiments: Collection[str] = ()
) -> tuple[float, ...]:
    """The rewards that metrics make; none while some metric is still to come.

    Args:
        rewards: of the search.
        metrics: the latest of each.
        sub_experiments: those of a trial. Of a part of them a sum, or the worst, would look better
            than of all: so there are no rewards before each has measured something.

    Raises:
        NonFiniteRewardError: a reward is NaN or infinite.
    """
    if {*sub_experiments} - {split_name(name)[1] for name in metrics}:
        return ()
    try:
        return tuple(reward.value(metrics) for reward in rewards)
    except MissingMetricError:
        return ()
