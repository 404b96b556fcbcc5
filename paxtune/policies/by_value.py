"""Stops trials that miss a threshold."""

from collections.abc import Sequence

from paxtune.measurement import Measurement
from paxtune.policies.gated import Gated, passes_now
from paxtune.rewards import Reward


class ByValue(Gated):
    """Stops a trial that is worse than a threshold when it passes a gate.

    Attributes:
        gates: rows [step, threshold], by step.

    Example:
        >>> from paxtune.rewards import MetricReward
        >>> policy = ByValue(gates=[[100, 3.0], [200, 2.5]])
        >>> loss = MetricReward('minimize', 'loss')
        >>> policy.should_stop([Measurement(100, {}, (3.5,))], [], loss)
        'reward 3.5 at step 100 is worse than 3.0, the threshold from step 100'
    """

    ROW = ('step', 'threshold')

    def should_stop(
        self,
        measurements: Sequence[Measurement],
        others: Sequence[Sequence[Measurement]],
        reward: Reward | None,
    ) -> str | None:
        score = self.score(reward)
        (own,) = self.passages([measurements])
        if not passes_now(own, measurements):
            return None
        now = own[-1]
        step, threshold = self.gates[now.gate]
        if score(now.value) >= score(threshold):
            return None
        return (
            f'{self.subject} {now.value:.6g} at step {now.step} is worse than {threshold}, '
            f'the threshold from step {int(step)}'
        )
