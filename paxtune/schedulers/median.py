"""Stops trials that lag behind the others."""

import bisect
import statistics
from collections.abc import Sequence
from typing import Literal

from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curve, Policy, Stop, reward_score


class MedianStopping(Policy):
    """Stops a trial whose best reward so far is worse than the median of the others.

    The median is over the trials that were measured at exactly this step, whatever became of them;
    where budgets are not counted in steps, over those that have spent as much.
    With `compare='averages'` this is the rule of Google Vizier (Golovin et al. 2017), which judges
    by the mean of each trial's rewards up to the step. Where rewards improve steadily such means
    lie far behind the curves, and hardly a trial is stopped; so the default takes the rewards at
    the step itself.

    Attributes:
        warmup_steps: trials are not judged before this step.
        min_trials: nor with fewer other trials to compare with.
        compare: what stands for another trial: its reward at the step, or the average up to it.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> loss = MetricReward('minimize', 'loss')
        >>> def curve(id: int, value: float) -> Curve:
        ...     return Curve(id, 'running', [Measurement(10, {}, (value,))], [10.0])
        >>> others = [curve(id, value) for id, value in enumerate((1.0, 2.0, 3.0), start=1)]
        >>> MedianStopping(min_trials=3).judge(curve(4, 2.5), others, loss).reason
        'best reward 2.5 up to step 10 is worse than 2, the median of 3 trials there'
    """

    warmup_steps: int = 0
    min_trials: int = 5
    compare: Literal['values', 'averages'] = 'values'

    def check(self) -> None:
        super().check()
        if self.warmup_steps < 0:
            raise ValueError(f'warmup_steps must be at least 0: {self.warmup_steps}')
        if self.min_trials < 1:
            raise ValueError(f'min_trials must be at least 1: {self.min_trials}')

    def judge(self, curve: Curve, others: Sequence[Curve], reward: Reward | None) -> Stop | None:
        score = reward_score(self, reward)
        last = curve.measurements[-1]
        step, reached = last.step, curve.spent[-1]
        if step < self.warmup_steps or last.reward is None:
            return None
        # Read once: a study may have thousands of trials.
        exactly, average = self.unit == 'steps', self.compare == 'averages'
        rivals = [_stand(other, reached, exactly, average) for other in others]
        known = [rival for rival in rivals if rival is not None]
        if len(known) < self.min_trials:
            return None
        median = statistics.median(known)
        best = max(
            (each.reward for each in curve.measurements if each.reward is not None), key=score
        )
        if score(best) >= score(median):
            return None
        return Stop(
            f'best reward {best:.6g} up to step {step} is worse than {median:.6g}, '
            f'the median of {len(known)} trials there'
        )


def _stand(other: Curve, reached: float, exactly: bool, average: bool) -> float | None:
    """What stands for another trial where it had spent as much; None if it never had.

    Args:
        other: the other trial.
        reached: what had been spent.
        exactly: it must have a reward at exactly that, since evaluations come every so many steps.
        average: whether that is the average of its rewards up to there, or the last of them.
    """
    if not other.spent or other.spent[-1] < reached:
        return None
    last = bisect.bisect_right(other.spent, reached) - 1
    while last >= 0 and other.measurements[last].reward is None:
        last -= 1
    if last < 0 or (exactly and other.spent[last] != reached):
        return None
    if not average:
        return other.measurements[last].reward
    rewards = (each.reward for each in other.measurements[: last + 1])
    return statistics.fmean(each for each in rewards if each is not None)
