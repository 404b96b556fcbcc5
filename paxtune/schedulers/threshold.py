"""Stops trials that miss a threshold."""

from collections.abc import Sequence

from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Stop, TrialCurve
from paxtune.schedulers.milestones import MilestoneScheduler, reached_now


class ThresholdStopping(MilestoneScheduler):
    """Stops a trial that is worse than a threshold when it reaches a milestone.

    Attributes:
        milestones: rows [step, threshold], by step.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> scheduler = ThresholdStopping(milestones=[[100, 3.0], [200, 2.5]])
        >>> loss = MetricReward('minimize', 'loss')
        >>> curve = TrialCurve(1, 'running', [Measurement(100, {}, (3.5,))], [100.0])
        >>> scheduler.decide(curve, [], loss).reason
        'reward 3.5 at step 100 is worse than 3.0, the threshold from step 100'
    """

    ROW = ('step', 'threshold')

    def _decide(
        self, curve: TrialCurve, others: Sequence[TrialCurve], reward: Reward | None
    ) -> Stop | None:
        score = self.score(reward)
        (own,) = self.values([curve])
        if not reached_now(own, curve):
            return None
        now = own[-1]
        step, threshold = self.milestones[now.milestone]
        if score(now.value) >= score(threshold):
            return None
        return Stop(
            f'{self.label} {now.value:.6g} at step {now.step} is worse than {threshold}, '
            f'the threshold from step {int(step)}'
        )
