"""Stops trials that lag behind the others."""

import statistics
from collections.abc import Sequence
from typing import Literal

from paxtune.measurement import Measurement
from paxtune.policies.base import EarlyStopping, reward_score
from paxtune.rewards import Reward


class MedianStopping(EarlyStopping):
    """Stops a trial whose best reward so far is worse than the median of the others.

    The median is over the trials that were measured at exactly this step, whatever became of them.
    With `compare='averages'` this is the rule of Google Vizier (Golovin et al. 2017), which judges
    by the mean of each trial's rewards up to the step. Where rewards improve steadily such means
    lie far behind the curves, and hardly a trial is stopped; so the default takes the rewards at
    the step itself.

    Attributes:
        warmup_steps: trials are not judged before this step.
        min_trials: nor with fewer other trials to compare with.
        compare: what stands for another trial: its reward at the step, or the average up to it.

    Example:
        >>> from paxtune.rewards import MetricReward
        >>> loss = MetricReward('minimize', 'loss')
        >>> others = [[Measurement(10, {}, (value,))] for value in (1.0, 2.0, 3.0)]
        >>> MedianStopping(min_trials=3).should_stop([Measurement(10, {}, (2.5,))], others, loss)
        'best reward 2.5 up to step 10 is worse than 2, the median of 3 trials there'
    """

    warmup_steps: int = 0
    min_trials: int = 5
    compare: Literal['values', 'averages'] = 'values'

    def check(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f'warmup_steps must be at least 0: {self.warmup_steps}')
        if self.min_trials < 1:
            raise ValueError(f'min_trials must be at least 1: {self.min_trials}')

    def should_stop(
        self,
        measurements: Sequence[Measurement],
        others: Sequence[Sequence[Measurement]],
        reward: Reward | None,
    ) -> str | None:
        score = reward_score(self, reward)
        step = measurements[-1].step
        if step < self.warmup_steps or measurements[-1].reward is None:
            return None
        rivals = [self._stand(other, step) for other in others]
        known = [rival for rival in rivals if rival is not None]
        if len(known) < self.min_trials:
            return None
        median = statistics.median(known)
        best = max((value for _, value in _rewards(measurements)), key=score)
        if score(best) >= score(median):
            return None
        return (
            f'best reward {best:.6g} up to step {step} is worse than {median:.6g}, '
            f'the median of {len(known)} trials there'
        )

    def _stand(self, other: Sequence[Measurement], step: int) -> float | None:
        """What stands for another trial at a step; None where it was not measured there."""
        rewards = [(at, value) for at, value in _rewards(other) if at <= step]
        if not any(at == step for at, _ in rewards):
            return None
        values = [value for _, value in rewards]
        return statistics.fmean(values) if self.compare == 'averages' else values[-1]


def _rewards(measurements: Sequence[Measurement]) -> list[tuple[int, float]]:
    """The steps that have a reward, and the rewards."""
    return [(each.step, each.reward) for each in measurements if each.reward is not None]
