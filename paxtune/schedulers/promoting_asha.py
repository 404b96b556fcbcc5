"""Pauses trials at rungs, and promotes the best."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from paxtune.algorithms.base import SuggestionContext
from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curve, Pause, Promote, reward_score
from paxtune.schedulers.rungs import Rungs, rung_at

_Ladder: TypeAlias = list[tuple[float, list[int]]]


class PromotingAsha(Rungs):
    """Asynchronous successive halving (Li et al. 2020): paused at every rung, the best go on.

    Whoever has nothing to do promotes, from the highest rung down, a paused trial that is among
    the best 1 / reduction_factor of those that have passed its rung; where there is none, a new
    trial begins. Few trials go far because they came early, as with `Asha`, and none is lost
    because it came late. When the study has no room for more, and no trial has completed, the best
    one of the highest rung goes on until one has.

    Example:
        >>> import pyglove as pg
        >>> from paxtune.objectives.measurement import Measurement
        >>> from paxtune.objectives.rewards import MetricReward
        >>> loss = MetricReward('minimize', 'loss')
        >>> def curve(id: int, value: float) -> Curve:
        ...     measured = [Measurement(10, {}, (value,))]
        ...     return Curve(id, 'paused', measured, [10.0], budget=100.0, pauses=[10])
        >>> curves = [curve(id, value) for id, value in enumerate((2.0, 1.0, 3.0), start=1)]
        >>> request = SuggestionContext(pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0))), 0, 4, list)
        >>> PromotingAsha(min_budget=10).next(curves, loss, request, may_begin=True)
        Promote(trial=2, reason='number 1 of 3 trials at the rung of 10 steps')
    """

    @property
    def pauses(self) -> bool:
        return True

    def judge(self, curve: Curve, others: Sequence[Curve], reward: Reward | None) -> Pause | None:
        reward_score(self, reward)
        rung = self.passed_now(curve)
        if rung is None:
            return None
        last = curve.measurements[-1]
        return Pause(f'reward {last.reward:.6g} at step {last.step}, at {self.named(rung)}')

    def next(
        self,
        curves: Sequence[Curve],
        reward: Reward | None,
        request: SuggestionContext,
        may_begin: bool,
    ) -> Promote | None:
        rungs = self.ladder()
        waits = {
            curve.id: rung_at(curve, rungs(curve), curve.pauses[-1])
            for curve in curves
            if curve.state == 'paused'
        }
        brackets = self.brackets(curves)
        ladders = [self._ranked(rivals, reward) for rivals in brackets]
        for ladder in ladders:
            if (promotion := self._among_the_best(ladder, waits)) is not None:
                return promotion
        if may_begin or any(curve.state in ('waiting', 'running') for curve in curves):
            return None
        for rivals, ladder in zip(brackets, ladders, strict=True):
            completed = any(curve.state == 'completed' for curve in rivals)
            if not completed and (promotion := self._to_the_end(ladder, waits)) is not None:
                return promotion
        return None

    def brackets(self, curves: Sequence[Curve]) -> list[Sequence[Curve]]:
        """Trials by whom they are compared with."""
        return [curves]

    def _ranked(self, rivals: Sequence[Curve], reward: Reward | None) -> _Ladder:
        """The rungs from the highest down, each with those that have passed it, best first."""
        score = reward_score(self, reward)
        passed: dict[float, list[tuple[float, int]]] = {}
        for curve, values in zip(rivals, self.values(rivals), strict=True):
            for rung, value in values.items():
                passed.setdefault(rung, []).append((-score(value), curve.id))
        return [
            (rung, [number for _, number in sorted(passed[rung])])
            for rung in sorted(passed, reverse=True)
        ]

    def _among_the_best(self, ladder: _Ladder, waits: Mapping[int, float | None]) -> Promote | None:
        factor = self.reduction_factor
        for rung, ranked in ladder:
            for place, number in enumerate(ranked[: len(ranked) // factor], 1):
                if waits.get(number) == rung:
                    told = f'number {place} of {len(ranked)} trials at {self.named(rung)}'
                    return Promote(number, told)
        return None

    def _to_the_end(self, ladder: _Ladder, waits: Mapping[int, float | None]) -> Promote | None:
        for rung, ranked in ladder:
            for number in ranked:
                if waits.get(number) == rung:
                    told = f'the best at {self.named(rung)}, and no trial has completed'
                    return Promote(number, told)
        return None
