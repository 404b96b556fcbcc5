"""Stops trials that miss a threshold."""

from collections.abc import Sequence

from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curve, Stop
from paxtune.schedulers.milestones import Gated, passes_now


class ByValue(Gated):
    """Stops a trial that is worse than a threshold when it passes a gate.

    Attributes:
        gates: rows [step, threshold], by step.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> policy = ByValue(gates=[[100, 3.0], [200, 2.5]])
        >>> loss = MetricReward('minimize', 'loss')
        >>> curve = Curve(1, 'running', [Measurement(100, {}, (3.5,))], [100.0])
        >>> policy.judge(curve, [], loss).reason
        'reward 3.5 at step 100 is worse than 3.0, the threshold from step 100'
    """

    ROW = ('step', 'threshold')

    def judge(self, curve: Curve, others: Sequence[Curve], reward: Reward | None) -> Stop | None:
        score = self.score(reward)
        (own,) = self.passages([curve])
        if not passes_now(own, curve):
            return None
        now = own[-1]
        step, threshold = self.gates[now.gate]
        if score(now.value) >= score(threshold):
            return None
        return Stop(
            f'{self.subject} {now.value:.6g} at step {now.step} is worse than {threshold}, '
            f'the threshold from step {int(step)}'
        )
