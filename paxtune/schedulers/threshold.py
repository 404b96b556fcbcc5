from paxtune.schedulers.base import Curves, Score, Stop
from paxtune.schedulers.milestones import MilestoneScheduler, MilestoneValue


class ThresholdStopping(MilestoneScheduler):
    """Stops a trial that is worse than a threshold when it reaches a milestone.

    Attributes:
        milestones: rows [step, threshold], by step.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> from paxtune.schedulers.base import TrialCurve
        >>> scheduler = ThresholdStopping(milestones=[[100, 3.0], [200, 2.5]])
        >>> loss = MetricReward('minimize', 'loss')
        >>> curve = TrialCurve(1, 'running', [Measurement(100, {}, (3.5,))], [100.0])
        >>> scheduler.decide(curve, [], loss).reason
        'reward 3.5 at step 100 is worse than 3.0, the threshold from step 100'
    """

    ROW = ('step', 'threshold')

    def _decide_at(self, value: MilestoneValue, others: Curves, score: Score) -> Stop | None:
        step, threshold = self.milestones[value.milestone]
        if score(value.value) >= score(threshold):
            return None
        return Stop(
            f'{self.label} {value.value:.6g} at step {value.step} is worse than {threshold}, '
            f'the threshold from step {int(step)}'
        )
