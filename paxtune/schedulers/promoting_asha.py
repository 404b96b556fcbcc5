import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paxtune.algorithms.base import SuggestionContext
from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curves, Pause, Promote, TrialCurve, column
from paxtune.schedulers.end_prediction import Array
from paxtune.schedulers.rungs import RungScheduler, rung_at


class _Candidate(NamedTuple):
    """The best trial that is paused at a rung, with its rank among all that have reached it."""

    bracket: int
    rung: float
    number: int
    rank: int
    reached: int


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
        sign = self._score(reward)(1.0)
        candidates = self._candidates(curves, sign)
        for _, rung, number, rank, count in candidates:
            if rank <= count // self.reduction_factor:
                reason = f'number {rank} of {count} trials at {self.rung_label(rung)}'
                return Promote(number, reason)
        states = column(curves, 'state', operator.attrgetter('state'))
        if may_begin or not candidates or not {'waiting', 'running'}.isdisjoint(states):
            return None
        ended = {
            bracket
            for bracket, state in zip(self._brackets(curves), states, strict=True)
            if state == 'completed'
        }
        for bracket, rung, number, _, _ in candidates:
            if bracket not in ended:
                reason = f'the best at {self.rung_label(rung)}, and no trial has completed'
                return Promote(number, reason)
        return None

    def _candidates(self, curves: Curves, sign: float) -> list[_Candidate]:
        """The best trial that is paused at each rung of each bracket, from the highest rung."""
        paused_at, found = self._paused_at(curves), []
        if not np.isfinite(paused_at).any():
            return []
        numbers = np.array(column(curves, 'number', operator.attrgetter('id')))
        brackets = np.array(self._brackets(curves))
        for bracket in np.unique(brackets):
            rungs = paused_at[(brackets == bracket) & np.isfinite(paused_at)]
            for rung in np.unique(rungs)[::-1].tolist():
                scores = sign * self.rewards_at(rung, curves)
                is_here = (brackets == bracket) & np.isfinite(scores)
                paused = np.flatnonzero(is_here & (paused_at == rung))
                if not len(paused):
                    continue
                best = paused[np.lexsort((numbers[paused], -scores[paused]))[0]]
                is_first = (scores == scores[best]) & (numbers < numbers[best])
                before = is_here & ((scores > scores[best]) | is_first)
                rank, count = int(before.sum()) + 1, int(is_here.sum())
                found.append(_Candidate(int(bracket), rung, int(numbers[best]), rank, count))
        return found

    def _paused_at(self, curves: Curves) -> Array:
        """The rung at which each trial is paused; NaN for none."""
        levels = self.rung_level_function()

        def rung(curve: TrialCurve) -> float:
            if curve.state != 'paused':
                return math.nan
            return rung_at(curve, levels(curve), curve.pauses[-1]) or math.nan

        return np.array(column(curves, 'paused at', rung), float)

    def _brackets(self, curves: Curves) -> Sequence[int]:
        """The number of the group within which each trial is compared."""
        return [0] * len(curves)
