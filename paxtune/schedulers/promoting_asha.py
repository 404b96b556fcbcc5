import itertools

from paxtune.algorithms.base import SuggestionContext
from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curves, Pause, Promote, TrialCurve
from paxtune.schedulers.rungs import RungScheduler, pause_rungs


class PromotingAsha(RungScheduler):
    """Asynchronous successive halving (Li et al. 2020): paused at every rung, the best go on.

    An idle worker promotes a paused trial among the best 1 / reduction_factor of the trials that
    have reached its rung, from the highest rung down. If there is none, a new trial begins. Few
    trials go far because they came early, as with `Asha`, and none is lost because it came late.
    When the study has no room for more trials, and none has completed, the best one of the highest
    rung goes on until one has.

    Example:
        >>> import pyglove as pg
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> loss = MetricReward('minimize', 'loss')
        >>> def curve(id: int, value: float) -> TrialCurve:
        ...     measured = [Measurement(10, {}, (value,))]
        ...     return TrialCurve(id, 'paused', measured, [10.0], max_resource=100.0, pauses=[10])
        >>> curves = [curve(id, value) for id, value in enumerate((2.0, 1.0, 3.0), start=1)]
        >>> context = SuggestionContext(pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0))), 0, 4, list)
        >>> PromotingAsha(min_resource=10).next_action(curves, loss, context, may_begin=True)
        Promote(trial=2, reason='number 1 of 3 trials at the rung of 10 steps')
    """

    pauses = True

    def _decide(self, curve: TrialCurve, others: Curves, reward: Reward | None) -> Pause | None:
        self._score(reward)
        rung = self.rung_reached_now(curve)
        if rung is None:
            return None
        last = curve.measurements[-1]
        return Pause(f'reward {last.reward:.6g} at step {last.step}, at {self.rung_label(rung)}')

    def next_action(
        self, curves: Curves, reward: Reward | None, context: SuggestionContext, may_begin: bool
    ) -> Promote | None:
        paused_at = pause_rungs(curves, self.rung_level_function())
        brackets = self.brackets(curves)
        rankings = [self.rankings(bracket, reward) for bracket in brackets]
        for rung, ranked in itertools.chain(*rankings):
            for rank, number in enumerate(ranked[: len(ranked) // self.reduction_factor], 1):
                if paused_at.get(number) == rung:
                    reason = f'number {rank} of {len(ranked)} trials at {self.rung_label(rung)}'
                    return Promote(number, reason)
        if may_begin or any(curve.state in ('waiting', 'running') for curve in curves):
            return None
        for bracket, ranking in zip(brackets, rankings, strict=True):
            if any(curve.state == 'completed' for curve in bracket):
                continue
            for rung, ranked in ranking:
                first = next((n for n in ranked if paused_at.get(n) == rung), None)
                if first is not None:
                    reason = f'the best at {self.rung_label(rung)}, and no trial has completed'
                    return Promote(first, reason)
        return None

    def brackets(self, curves: Curves) -> list[Curves]:
        """The groups within which trials are compared."""
        return [curves]
