import bisect
import statistics
from collections.abc import Sequence
from typing import Literal

import numpy as np

from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curves, Scheduler, Stop, TrialCurve, column
from trainer.symbolic.component import require_at_least


class MedianStopping(Scheduler):
    """Stops a trial whose best reward so far is worse than the median of the others.

    The median is over the trials with a measurement at exactly this step, in any state. In other
    units than steps, it is over trials that have used as much of the resource. With
    `compare='averages'` this is the rule of Google Vizier (Golovin et al. 2017): it takes the mean
    of each trial's rewards up to the step. Where rewards improve steadily, such means lie far
    behind the curves and stop hardly any trial. So the default takes the reward at the step.

    Attributes:
        warmup_steps: no trial is stopped before this step.
        min_trials: no trial is stopped with fewer other trials to compare with.
        compare: the value of another trial: its reward at the step, or the average up to it.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> loss = MetricReward('minimize', 'loss')
        >>> def curve(id: int, value: float) -> TrialCurve:
        ...     return TrialCurve(id, 'running', [Measurement(10, {}, (value,))], [10.0])
        >>> others = [curve(id, value) for id, value in enumerate((1.0, 2.0, 3.0), start=1)]
        >>> MedianStopping(min_trials=3).decide(curve(4, 2.5), others, loss).reason
        'best reward 2.5 up to step 10 is worse than 2, the median of 3 trials there'
    """

    warmup_steps: int = 0
    min_trials: int = 5
    compare: Literal['values', 'averages'] = 'values'

    def check(self) -> None:
        super().check()
        require_at_least(self, 0, 'warmup_steps')
        require_at_least(self, 1, 'min_trials')

    def onsets(self, max_resource: float) -> dict[str, float]:
        warmup = {'warmup_steps': float(self.warmup_steps)} if self.unit == 'steps' else {}
        return {**super().onsets(max_resource), **warmup}

    def _decide(self, curve: TrialCurve, others: Curves, reward: Reward | None) -> Stop | None:
        score = self._score(reward)
        last = curve.measurements[-1]
        step, resource = last.step, curve.resources[-1]
        if step < self.warmup_steps or last.reward is None:
            return None
        exactly, average = self.unit == 'steps', self.compare == 'averages'
        values: Sequence[float | None]
        if exactly and not average:
            at = column(others, 'rewards by resource', _rewards_by_resource)
            values = [each.get(resource) for each in at]
        else:
            values = [_value(other, resource, exactly, average) for other in others]
        known = [value for value in values if value is not None]
        if len(known) < self.min_trials:
            return None
        median = float(np.median(known))
        best = max(
            (each.reward for each in curve.measurements if each.reward is not None), key=score
        )
        if score(best) >= score(median):
            return None
        return Stop(
            f'best reward {best:.6g} up to step {step} is worse than {median:.6g}, '
            f'the median of {len(known)} trials there'
        )


def _rewards_by_resource(curve: TrialCurve) -> dict[float, float]:
    measured = zip(curve.resources, curve.measurements, strict=True)
    return {resource: each.reward for resource, each in measured if each.reward is not None}


def _value(other: TrialCurve, resource: float, exactly: bool, average: bool) -> float | None:
    """The last reward up to a resource, or the average; None if the trial has not reached it.

    Trials are evaluated at the same steps, so there it may have to be `exactly` this resource.
    """
    if not other.resources or other.resources[-1] < resource:
        return None
    last = bisect.bisect_right(other.resources, resource) - 1
    while last >= 0 and other.measurements[last].reward is None:
        last -= 1
    if last < 0 or (exactly and other.resources[last] != resource):
        return None
    if not average:
        return other.measurements[last].reward
    rewards = (each.reward for each in other.measurements[: last + 1])
    return statistics.fmean(each for each in rewards if each is not None)
