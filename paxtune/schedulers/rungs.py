"""What policies have in common that judge trials at rungs of a ladder of budgets."""

import bisect
import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence

from paxtune.schedulers.base import Curve, Policy

_step = operator.attrgetter('step')


class Rungs(Policy):
    """Compares trials at rungs: at budgets of which each is a multiple of the one before.

    A trial passes a rung at its first measurement with a reward from there on, and that reward is
    what it is worth there. Within the grace there are no rungs.

    Attributes:
        min_budget: the lowest rung, in `unit`.
        max_budget: all rungs lie below this; None for the trial's own budget. Needed where nobody
            knows that, as with seconds.
        reduction_factor: each rung is so many times the one below it.
    """

    min_budget: float
    max_budget: float | None = None
    reduction_factor: int = 3

    def check(self) -> None:
        super().check()
        if not 0.0 < self.min_budget < math.inf:
            raise ValueError(f'min_budget must be greater than 0: {self.min_budget}')
        if self.max_budget is not None and not self.min_budget < self.max_budget < math.inf:
            raise ValueError(
                f'max_budget ({self.max_budget}) must be above min_budget ({self.min_budget})'
            )
        if self.reduction_factor < 2:
            raise ValueError(f'reduction_factor must be at least 2: {self.reduction_factor}')
        if self.unit == 'seconds' and self.max_budget is None:
            raise ValueError('max_budget must be given in seconds: no trial knows its own')

    @property
    def needs_budget(self) -> bool:
        return super().needs_budget or self.max_budget is None

    def ladder(self) -> Callable[[Curve], Sequence[float]]:
        """What gives the rungs of a trial, from the lowest.

        It raises ValueError where nobody knows the trial's budget and `max_budget` is not given.
        """
        # Read once: a study may have thousands of trials.
        lowest, highest = self.min_budget, self.max_budget
        factor, grace = self.reduction_factor, self.grace

        def rungs(curve: Curve) -> Sequence[float]:
            budget = curve.budget if highest is None else highest
            if budget is None:
                raise ValueError('max_budget must be given where nobody knows the budget of trials')
            return _rungs(lowest, budget, factor, grace * (curve.budget or 0.0))

        return rungs

    def rungs(self, curve: Curve) -> Sequence[float]:
        """The rungs of a trial, from the lowest."""
        return self.ladder()(curve)

    def values(self, curves: Sequence[Curve]) -> list[dict[float, float]]:
        """The reward of each trial at each rung that it has passed."""
        rungs = self.ladder()
        return [_values(curve, rungs(curve)) for curve in curves]

    def passed_now(self, curve: Curve) -> float | None:
        """The highest rung that a trial passes with its last measurement; None if it passes none.

        Once it was paused, only rungs above that one count.
        """
        last = curve.measurements[-1]
        # One that was promoted is measured again up to where it was paused.
        if last.reward is None or (curve.pauses and last.step <= curve.pauses[-1]):
            return None
        rungs = self.rungs(curve)
        rung = rung_at(curve, rungs, last.step)
        paused = rung_at(curve, rungs, curve.pauses[-1]) if curve.pauses else None
        return None if rung is None or rung <= (paused or 0.0) else rung

    def named(self, rung: float) -> str:
        """A rung, for people."""
        return f'the rung of {rung:.6g} {self.unit}'


def first_rung(evaluated: Iterable[float], budget: float) -> float:
    """A lowest rung, where nobody names one: the first evaluation from a 27th of the budget on.

    Args:
        evaluated: what trials will have spent at their evaluations.
        budget: all that they spend.

    Example:
        >>> first_rung(range(100, 10001, 100), 10000)
        400
    """
    return min(spent for spent in evaluated if spent * 27 >= budget)


def spent_at(curve: Curve, step: int) -> float:
    """What a trial had spent at its last measurement up to a step; 0 before the first.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> curve = Curve(1, 'running', [Measurement(10, {}), Measurement(20, {})], [80.0, 160.0])
        >>> [spent_at(curve, step) for step in (9, 10, 30)]
        [0.0, 80.0, 160.0]
    """
    count = bisect.bisect_right(curve.measurements, step, key=_step)
    return curve.spent[count - 1] if count else 0.0


def rung_at(curve: Curve, rungs: Sequence[float], step: int) -> float | None:
    """The highest rung that a trial has come to at a step; None below the first."""
    count = bisect.bisect_right(rungs, spent_at(curve, step))
    return rungs[count - 1] if count else None


def _values(curve: Curve, rungs: Sequence[float]) -> dict[float, float]:
    values: dict[float, float] = {}
    for rung in rungs:
        there = range(bisect.bisect_left(curve.spent, rung), len(curve.spent))
        rewards = (curve.measurements[index].reward for index in there)
        value = next((reward for reward in rewards if reward is not None), None)
        if value is None:
            break
        values[rung] = value
    return values


@functools.lru_cache(maxsize=1024)
def _rungs(lowest: float, budget: float, factor: int, least: float) -> tuple[float, ...]:
    """The rungs below a budget, without those below `least`."""
    found = []
    while lowest < budget:
        found.append(lowest)
        lowest *= factor
    return tuple(rung for rung in found if rung >= least)
