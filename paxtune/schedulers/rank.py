import itertools

from paxtune.schedulers.base import Curves, Score, Stop
from paxtune.schedulers.milestones import MilestoneScheduler, MilestoneValue


class RankStopping(MilestoneScheduler):
    """Stops a trial that is worse than the one of a given rank when it reaches a milestone.

    The ranking is over other trials that reached the same milestone, in any state, by their values
    there.

    Attributes:
        milestones: rows [step, rank, min_others], by step. The rank is a whole number from 1, the
            best, or a share between 0 and 1. With 0.25, a trial in the best quarter goes on. No
            trial is stopped if there are fewer others than `min_others`, or than the rank.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> from paxtune.schedulers.base import TrialCurve
        >>> scheduler = RankStopping(milestones=[[100, 2, 3]])
        >>> loss = MetricReward('minimize', 'loss')
        >>> def curve(id: int, value: float) -> TrialCurve:
        ...     return TrialCurve(id, 'running', [Measurement(100, {}, (value,))], [100.0])
        >>> others = [curve(id, value) for id, value in enumerate((1.0, 2.0, 3.0), start=1)]
        >>> scheduler.decide(curve(4, 2.5), others, loss).reason
        'reward 2.5 at step 100 is worse than 2, number 2 of 3 trials at the milestone of step 100'
    """

    ROW = ('step', 'rank', 'min_others')

    def check(self) -> None:
        super().check()
        for _, rank, min_others in self.milestones:
            if not rank > 0 or (rank > 1 and rank != int(rank)):
                raise ValueError(
                    f'a rank must be a whole number from 1, or a share between 0 and 1: {rank}'
                )
            if min_others < 0 or min_others != int(min_others):
                raise ValueError(f'min_others must be a whole number from 0: {min_others}')

    def _decide_at(self, value: MilestoneValue, others: Curves, score: Score) -> Stop | None:
        step, rank, min_others = self.milestones[value.milestone]
        values = itertools.chain.from_iterable(self._values(others))
        rivals = [each.value for each in values if each.milestone == value.milestone]
        # As in Pax, a share is of the way from the best to the worst.
        number = int(rank) if rank >= 1 else int((len(rivals) - 1) * rank) + 1
        if len(rivals) < max(number, min_others, 1):
            return None
        worst = sorted(rivals, key=score, reverse=True)[number - 1]
        if score(value.value) >= score(worst):
            return None
        return Stop(
            f'{self.label} {value.value:.6g} at step {value.step} is worse than {worst:.6g}, '
            f'number {number} of {len(rivals)} trials at the milestone of step {int(step)}'
        )
