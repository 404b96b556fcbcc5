"""Rewards: numbers that compare trials."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import pyglove as pg

from paxtune.objectives.metrics import Metric, MissingMetricError, as_metric, split_name
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError


class NonFiniteRewardError(Exception):
    """The reward is NaN, infinite or undefined: the trial is infeasible."""


class Reward(Component):
    """Computes a reward from the metrics of one step.

    Subclasses override `compute` and `metrics`.

    Attributes:
        goal: whether small or large rewards are better.
        reward_for_nan: replaces a reward that is NaN. If it is None, such a trial is infeasible, as
            any trial with an infinite reward.
    """

    goal: Literal['minimize', 'maximize']
    reward_for_nan: float | None = None

    def _on_bound(self) -> None:
        super()._on_bound()
        # A field lookup takes microseconds, and scores are compared by the thousand.
        self._maximizes = self.sym_init_args.get('goal') == 'maximize'

    def check(self) -> None:
        if self.reward_for_nan is not None and not math.isfinite(self.reward_for_nan):
            raise ValueError(f'reward_for_nan must be finite: {self.reward_for_nan}')

    @property
    def label(self) -> str:
        """Display name."""
        return type(self).__name__

    @property
    def metrics(self) -> list[Metric]:
        """Required metrics, if they are known in advance."""
        return []

    def compute(self, metrics: Mapping[str, float]) -> float:
        """Computes the reward, finite or not.

        Raises:
            MissingMetricError: a required metric was not measured.
            NonFiniteRewardError: the reward of these metrics is undefined.
            UserError: a required metric is ambiguous.
        """
        raise NotImplementedError(type(self).__name__)

    def value(self, metrics: Mapping[str, float]) -> float:
        """Computes a finite reward from the metrics of one step.

        Raises:
            MissingMetricError: a required metric was not measured.
            NonFiniteRewardError: it is infinite, NaN without `reward_for_nan`, or undefined.
            UserError: a required metric is ambiguous.
        """
        reward = float(self.compute(metrics))
        if math.isnan(reward) and self.reward_for_nan is not None:
            return self.reward_for_nan
        if not math.isfinite(reward):
            raise NonFiniteRewardError(f'the reward is {reward}{self._why(metrics)}')
        return reward

    def _why(self, metrics: Mapping[str, float]) -> str:
        used = {name: metrics[name] for each in self.metrics for name in each.matches(metrics)}
        found = [f'{name} is {value}' for name, value in used.items() if not math.isfinite(value)]
        return f' ({", ".join(found)})' if found else ''

    def score(self, reward: float) -> float:
        """Converts a reward to a score: larger is better."""
        return reward if self._maximizes else -reward

    def _measured(
        self, metric: str | Metric, metrics: Mapping[str, float], *field: str | int
    ) -> float:
        try:
            return as_metric(metric).value(metrics)
        except UserError as error:  # To find the path takes as long as to compute the reward.
            raise type(error)(f'{pg.KeyPath(list(field), self.sym_path)}: {error}') from error


@pg.use_init_args(['goal', 'metric', 'reward_for_nan'])
class MetricReward(Reward):
    """One metric.

    Attributes:
        goal: whether small or large values are better.
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


# Declared by name, because the class has a property of the same name.
_METRICS = pg.typing.List(pg.typing.Union([pg.typing.Str(), pg.typing.Object(Metric)]))


@pg.use_init_args(['goal', 'metrics', 'weights', 'reward_for_nan'])
@pg.members([('metrics', _METRICS)])
class WeightedSum(Reward):
    """Weighted sum of several metrics, divided by the sum of the absolute weights.

    Attributes:
        goal: whether small or large sums are better.
        metrics: metrics or their names.
        weights: one for each metric, not all zero. A negative weight inverts a metric.

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
    """Base of rewards that correct a quality by the ratio of a cost to its target.

    Attributes:
        metric: quality; larger is better.
        cost: cost, for example 'num_params' or 'flops_per_token'.
        cost_target: target of the cost, above 0.
        exponent: weight of the cost: 0 ignores it, lower values weigh it more.
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
                f'{type(self).__name__} must be maximized, because larger values of its metric are '
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
        """Reward of a quality whose cost is `ratio` times the target."""
        raise NotImplementedError(type(self).__name__)

    def _factor(self, quality: float, ratio: float) -> float:
        if quality < 0:
            # A small factor would increase a negative quality.
            raise NonFiniteRewardError(
                f'{as_metric(self.metric).label} is {quality:.6g}: {type(self).__name__} requires '
                'a metric of at least 0'
            )
        try:
            return float(ratio**self.exponent)
        except (OverflowError, ZeroDivisionError):
            return math.inf


_QUALITY_AT_COST = ['metric', 'cost', 'cost_target', 'exponent', 'goal', 'reward_for_nan']


@pg.use_init_args(_QUALITY_AT_COST)
class TunasAbsolute(QualityAtCost):
    """Absolute reward of TuNAS (Bender et al. 2020): it falls on both sides of the target.

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
    """Hard reward of MnasNet (Tan et al. 2019): it falls beyond the target.

    It is `quality · min((cost / target)^exponent, 1)`, for a quality of at least 0.

    Example:
        >>> reward = MnasHard('eval/accuracy', 'num_params', cost_target=1e6, exponent=-1)
        >>> [reward.value({'eval/accuracy': 0.8, 'num_params': n}) for n in (5e5, 2e6)]
        [0.8, 0.4]
    """

    def corrected(self, quality: float, ratio: float) -> float:
        return quality * min(self._factor(quality, ratio), 1.0)


@pg.use_init_args(_QUALITY_AT_COST)
class MnasSoft(QualityAtCost):
    """Soft reward of MnasNet (Tan et al. 2019): it falls with the cost everywhere.

    It is `quality · (cost / target)^exponent`, for a quality of at least 0.

    Example:
        >>> reward = MnasSoft('eval/accuracy', 'num_params', cost_target=1e6, exponent=-1)
        >>> [reward.value({'eval/accuracy': 0.8, 'num_params': n}) for n in (5e5, 2e6)]
        [1.6, 0.4]
    """

    def corrected(self, quality: float, ratio: float) -> float:
        return quality * self._factor(quality, ratio)


class Objectives(Component):
    """Several rewards of equal rank: the study has a Pareto front.

    Attributes:
        rewards: at least two, with distinct labels.

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
            raise ValueError(f'there must be at least two rewards: {len(labels)}')
        if len(set(labels)) < len(labels):
            raise ValueError(f'rewards must differ: {", ".join(labels)}')


def search_rewards(reward: Reward | Objectives | None) -> list[Reward]:
    """Rewards of a search as a list."""
    if isinstance(reward, Objectives):
        return list(reward.rewards)
    return [] if reward is None else [reward]


def measured_rewards(
    rewards: Sequence[Reward], metrics: Mapping[str, float], sub_experiments: Collection[str] = ()
) -> tuple[float, ...]:
    """Rewards of the latest metrics; empty while a required metric is missing.

    They are also empty until each sub-experiment has measured something. A sum or a maximum over a
    part would look better than over all.

    Raises:
        NonFiniteRewardError: a reward is NaN or infinite.
    """
    if {*sub_experiments} - {split_name(name)[1] for name in metrics}:
        return ()
    try:
        return tuple(reward.value(metrics) for reward in rewards)
    except MissingMetricError:
        return ()
