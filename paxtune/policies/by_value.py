"""Stops trials that miss a threshold."""

from collections.abc import Sequence

from paxtune.measurement import Measurement
from paxtune.policies.base import EarlyStopping
from paxtune.rewards import Reward


class ByValue(EarlyStopping):
    """Stops a trial whose reward is worse than a threshold when it passes a gate.

    As in Pax, a trial is judged once at each gate, at its first measurement from there on; of
    several gates between two measurements the last one counts.

    Attributes:
        gates: rows [step, threshold], by step.

    Example:
        >>> from paxtune.rewards import MetricReward
        >>> policy = ByValue(gates=[[100, 3.0], [200, 2.5]])
        >>> loss = MetricReward(metric='loss', goal='minimize')
        >>> policy.should_stop([Measurement(100, {}, 3.5)], [], loss)
        'reward 3.5 at step 100 is worse than 3.0, the threshold from step 100'
    """

    gates: list[list[float]]

    def check(self) -> None:
        if not self.gates or any(len(gate) != 2 for gate in self.gates):
            raise ValueError(f'gates must be rows [step, threshold], at least one: {self.gates}')
        steps = [step for step, _ in self.gates]
        if any(step < 0 or step != int(step) for step in steps):
            raise ValueError(f'the steps of gates must be whole numbers from 0: {steps}')
        if sorted(set(steps)) != steps:
            raise ValueError(f'the steps of gates must increase: {steps}')

    def should_stop(
        self,
        measurements: Sequence[Measurement],
        others: Sequence[Sequence[Measurement]],
        reward: Reward,
    ) -> str | None:
        now = measurements[-1]
        passed = [gate for gate in self.gates if gate[0] <= now.step]
        if not passed:
            return None
        gate, threshold = passed[-1]
        if len(measurements) > 1 and measurements[-2].step >= gate:
            return None
        if reward.score(now.reward) >= reward.score(threshold):
            return None
        return (
            f'reward {now.reward:.6g} at step {now.step} is worse than {threshold}, '
            f'the threshold from step {int(gate)}'
        )
