"""Stops trials that are not among the best at a rung."""

import math
from collections.abc import Sequence

from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curve, Stop, reward_score
from paxtune.schedulers.rungs import Rungs


class Asha(Rungs):
    """Asynchronous successive halving that stops (Li et al. 2020), as in Ray Tune and Syne Tune.

    At each rung a trial goes on if it is among the best 1 / reduction_factor of all that have
    passed the rung so far, itself included; so the first one does. Who has been stopped stays so:
    no trial waits for others, and none needs a checkpoint.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> loss = MetricReward('minimize', 'loss')
        >>> def curve(id: int, value: float) -> Curve:
        ...     return Curve(id, 'running', [Measurement(10, {}, (value,))], [10.0], budget=100.0)
        >>> others = [curve(id, value) for id, value in enumerate((1.0, 2.0, 3.0), start=1)]
        >>> Asha(min_budget=10).judge(curve(4, 2.5), others, loss).reason
        'reward 2.5 at step 10 is number 3 of 4 trials at the rung of 10 steps: the best 2 go on'
    """

    def judge(self, curve: Curve, others: Sequence[Curve], reward: Reward | None) -> Stop | None:
        score = reward_score(self, reward)
        rung = self._passed_first(curve)
        if rung is None:
            return None
        own, *known = (values[rung] for values in self.values([curve, *others]) if rung in values)
        better, count = sum(score(value) > score(own) for value in known), len(known) + 1
        if better * self.reduction_factor < count:
            return None
        return Stop(
            f'reward {own:.6g} at step {curve.measurements[-1].step} is number {better + 1} of '
            f'{count} trials at {self.named(rung)}: '
            f'the best {math.ceil(count / self.reduction_factor)} go on'
        )

    def _passed_first(self, curve: Curve) -> float | None:
        """As `passed_now`, where an earlier measurement has not passed the rung yet."""
        rung = self.passed_now(curve)
        earlier = zip(curve.spent[:-1], curve.measurements[:-1], strict=True)
        if rung is None or any(at >= rung for at, each in earlier if each.reward is not None):
            return None
        return rung
