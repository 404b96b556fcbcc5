"""Rewards: the one number by which trials are compared."""

import math
from collections.abc import Mapping
from typing import Literal

from trainer.component import Component
from trainer.errors import UserError


class NonFiniteRewardError(Exception):
    """The reward is NaN or infinite: the trial is infeasible."""


class Reward(Component):
    """Makes a reward of the metrics that were measured at one step.

    Subclasses override `compute`.

    Attributes:
        goal: whether small or large rewards are good.
    """

    goal: Literal['minimize', 'maximize']

    @property
    def label(self) -> str:
        """What people are shown as its name."""
        return type(self).__name__

    def compute(self, metrics: Mapping[str, float]) -> float:
        """The reward, finite or not.

        Raises:
            UserError: a metric that it needs was not measured.
        """
        raise NotImplementedError(type(self).__name__)

    def value(self, metrics: Mapping[str, float]) -> float:
        """The reward.

        Args:
            metrics: all metrics that were measured at one step, by name.

        Raises:
            NonFiniteRewardError: it is NaN or infinite.
            UserError: a metric that it needs was not measured.
        """
        reward = float(self.compute(metrics))
        if not math.isfinite(reward):
            raise NonFiniteRewardError(f'the reward is {reward}')
        return reward

    def score(self, reward: float) -> float:
        """A reward with its sign such that more is better."""
        return reward if self.goal == 'maximize' else -reward


class MetricReward(Reward):
    """One metric, by its exact name.

    Attributes:
        goal: whether small or large values are good.
        metric: for example 'eval/bits_per_byte'.

    Example:
        >>> reward = MetricReward(metric='eval/loss', goal='minimize')
        >>> reward.value({'eval/loss': 0.5, 'eval/accuracy': 0.9})
        0.5
        >>> reward.score(0.5) > reward.score(0.7)
        True
    """

    metric: str

    @property
    def label(self) -> str:
        return self.metric

    def compute(self, metrics: Mapping[str, float]) -> float:
        if self.metric not in metrics:
            raise UserError(
                f'search.reward.metric: {self.metric!r} was not measured. '
                f'Measured: {", ".join(sorted(metrics))}.'
            )
        return metrics[self.metric]
