"""Stops trials whose learning curves lead nowhere near the best."""

import math
from collections.abc import Sequence

from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curve, Policy, Stop, reward_score
from paxtune.schedulers.curve_model import chance_to_beat


class CurveExtrapolation(Policy):
    """Stops a trial that will hardly beat the others, says a model of its learning curve.

    After each measurement the model predicts the trial's reward at its full budget, with an error
    (see `paxtune.schedulers.curve_model`; after Domhan et al. 2015, in closed form). The trial is
    stopped where the chance is small that this reward is better than the last one of any other
    trial, completed or not.

    The chance is that of one judgement. A trial is judged often, and one curve in some hundred does
    in its second half what nothing in the first half told of: see `grace`.

    Attributes:
        probability: below this chance the trial is stopped.
        min_points: trials are not judged with fewer measurements.
        budget: the full budget, in `unit`, where no trial knows its own, as with seconds.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> loss = MetricReward('minimize', 'loss')
        >>> def curve(id: int, *values: float) -> Curve:
        ...     steps = range(10, 10 * len(values) + 10, 10)
        ...     measured = [Measurement(x, {}, (y,)) for x, y in zip(steps, values)]
        ...     return Curve(id, 'running', measured, list(map(float, steps)), budget=100.0)
        >>> best = curve(1, 3.0, 2.0, 1.5, 1.25, 1.125)
        >>> CurveExtrapolation().judge(curve(2, 3.1, 2.2, 1.7, 1.4, 1.3), [best], loss)
        >>> CurveExtrapolation().judge(curve(3, 3.2, 3.0, 2.9, 2.9, 2.9), [best], loss).reason
        'reward 2.9 at step 50: the chance to end better than 1.125, the best of 1 other, is 0.0022'
    """

    probability: float = 0.05
    min_points: int = 4
    budget: float | None = None

    def check(self) -> None:
        super().check()
        if not 0.0 < self.probability < 1.0:
            raise ValueError(f'probability must be between 0 and 1: {self.probability}')
        if self.min_points < 2:
            raise ValueError(f'min_points must be at least 2: {self.min_points}')
        if self.budget is not None and not 0.0 < self.budget < math.inf:
            raise ValueError(f'budget must be greater than 0: {self.budget}')
        if self.unit == 'seconds' and self.budget is None:
            raise ValueError('budget must be given in seconds: no trial knows its own')

    def judge(self, curve: Curve, others: Sequence[Curve], reward: Reward | None) -> Stop | None:
        score = reward_score(self, reward)
        budget = self.budget if curve.budget is None else curve.budget
        if budget is None:
            raise ValueError('budget must be given where nobody knows the budget of a trial')
        last = curve.measurements[-1].reward
        rivals = [value for value in map(_last_reward, others) if value is not None]
        if last is None or not rivals or curve.spent[-1] >= budget:
            return None
        best = max(rivals, key=score)
        points = [
            (spent / budget, score(each.reward))
            for spent, each in zip(curve.spent, curve.measurements, strict=True)
            if each.reward is not None
        ]
        if len(points) < self.min_points or score(last) >= score(best):
            return None
        spent, scores = zip(*points, strict=True)
        chance = chance_to_beat(spent, scores, score(best))
        if chance >= self.probability:
            return None
        count = f'{len(rivals)} others' if len(rivals) > 1 else '1 other'
        return Stop(
            f'reward {last:.6g} at step {curve.measurements[-1].step}: the chance to end better '
            f'than {best:.6g}, the best of {count}, is {chance:.2g}'
        )


def _last_reward(curve: Curve) -> float | None:
    rewards = (each.reward for each in reversed(curve.measurements))
    return next((value for value in rewards if value is not None), None)
