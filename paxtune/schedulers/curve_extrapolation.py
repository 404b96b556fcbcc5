import math

from paxtune.objectives.measurement import last_reward
from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curves, Scheduler, Stop, TrialCurve
from paxtune.schedulers.curve_model import chance_to_beat
from trainer.symbolic.component import require_at_least


class CurveExtrapolation(Scheduler):
    """Stops a trial that is unlikely to beat the others, by a model of its learning curve.

    After each measurement the model predicts the distribution of the trial's reward at the end of
    its training (see `paxtune.schedulers.curve_model`; after Domhan et al. 2015, in closed form).
    The trial is stopped if this reward is unlikely to be better than the last one of every other
    trial, completed or not.

    The probability is that of one decision, of which a trial has many. About one curve in a hundred
    does in its second half what the first half gave no sign of: see `grace_period`.

    Attributes:
        probability: a trial with a smaller probability to be the best is stopped.
        min_points: no trial is stopped with fewer measurements.
        max_resource: the end of training, in `unit`, for trials that do not know their own, as
            with seconds.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> loss = MetricReward('minimize', 'loss')
        >>> def curve(id: int, *values: float) -> TrialCurve:
        ...     steps = range(10, 10 * len(values) + 10, 10)
        ...     measured = [Measurement(x, {}, (y,)) for x, y in zip(steps, values)]
        ...     return TrialCurve(id, 'running', measured, list(map(float, steps)), 100.0)
        >>> best = curve(1, 3.0, 2.0, 1.5, 1.25, 1.125)
        >>> CurveExtrapolation().decide(curve(2, 3.1, 2.2, 1.7, 1.4, 1.3), [best], loss)
        >>> CurveExtrapolation().decide(curve(3, 3.2, 3.0, 2.9, 2.9, 2.9), [best], loss).reason
        'reward 2.9 at step 50: the chance to end better than 1.125, the best of 1 other, is 0.0022'
    """

    probability: float = 0.05
    min_points: int = 4
    max_resource: float | None = None

    def check(self) -> None:
        super().check()
        if not 0.0 < self.probability < 1.0:
            raise ValueError(f'probability must be between 0 and 1: {self.probability}')
        require_at_least(self, 2, 'min_points')
        if self.max_resource is not None and not 0.0 < self.max_resource < math.inf:
            raise ValueError(f'max_resource must be greater than 0: {self.max_resource}')
        if self.unit == 'seconds' and self.max_resource is None:
            raise ValueError('max_resource must be given in seconds: no trial knows its own')

    def _decide(self, curve: TrialCurve, others: Curves, reward: Reward | None) -> Stop | None:
        score = self._score(reward)
        end = self.max_resource if curve.max_resource is None else curve.max_resource
        if end is None:
            raise ValueError('max_resource must be given where no trial knows its own')
        last = curve.measurements[-1].reward
        ends = (last_reward(other.measurements) for other in others)
        rivals = [value for value in ends if value is not None]
        if last is None or not rivals or curve.resources[-1] >= end:
            return None
        best = max(rivals, key=score)
        points = [
            (resource / end, score(each.reward))
            for resource, each in zip(curve.resources, curve.measurements, strict=True)
            if each.reward is not None
        ]
        if len(points) < self.min_points or score(last) >= score(best):
            return None
        shares, scores = zip(*points, strict=True)
        chance = chance_to_beat(shares, scores, score(best))
        if chance >= self.probability:
            return None
        count = f'{len(rivals)} others' if len(rivals) > 1 else '1 other'
        return Stop(
            f'reward {last:.6g} at step {curve.measurements[-1].step}: the chance to end better '
            f'than {best:.6g}, the best of {count}, is {chance:.2g}'
        )
