import math

import numpy as np

from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curves, Stop, TrialCurve
from paxtune.schedulers.rungs import RungScheduler


class Asha(RungScheduler):
    """Asynchronous successive halving that stops (Li et al. 2020), as in Ray Tune and Syne Tune.

    At each rung a trial goes on if it is among the best 1 / reduction_factor of those that have
    reached the rung so far. The first one goes on. A stopped trial stays stopped: no trial waits
    for others, and none needs a checkpoint.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> loss = MetricReward('minimize', 'loss')
        >>> def curve(id: int, value: float) -> TrialCurve:
        ...     return TrialCurve(id, 'running', [Measurement(10, {}, (value,))], [10.0], 100.0)
        >>> others = [curve(id, value) for id, value in enumerate((1.0, 2.0, 3.0), start=1)]
        >>> Asha(min_resource=10).decide(curve(4, 2.5), others, loss).reason
        'reward 2.5 at step 10 is number 3 of 4 trials at the rung of 10 steps: the best 2 go on'
    """

    def _decide(self, curve: TrialCurve, others: Curves, reward: Reward | None) -> Stop | None:
        score = self._score(reward)
        rung = self.rung_first_reached_now(curve)
        if rung is None:
            return None
        own = self.rung_rewards(curve)[rung]
        known = self.rewards_at(rung, others)
        # A score is the reward, or its negative.
        better = int(np.sum(score(1.0) * known > score(own)))
        count = int(np.sum(np.isfinite(known))) + 1
        if better * self.reduction_factor < count:
            return None
        return Stop(
            f'reward {own:.6g} at step {curve.measurements[-1].step} is number {better + 1} of '
            f'{count} trials at {self.rung_label(rung)}: '
            f'the best {math.ceil(count / self.reduction_factor)} go on'
        )
