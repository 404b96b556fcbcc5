"""The base of schedulers that compare trials at rungs."""

import bisect
import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from paxtune.objectives.measurement import last_reward
from paxtune.schedulers.base import Scheduler, TrialCurve, column
from paxtune.schedulers.end_prediction import Array
from trainer.symbolic.component import require_at_least

if TYPE_CHECKING:
    from trainer.experiment import Experiment


class RungScheduler(Scheduler):
    """Compares trials at rungs: resources that are each a multiple of the previous one.

    A trial reaches a rung at its first measurement with a reward from there on, and is compared by
    that reward. There are no rungs in the grace period.

    Attributes:
        min_resource: the lowest rung, in `unit`.
        max_resource: all rungs lie below this; None for the trial's own `max_resource`. Needed
            where that is unknown, as with seconds.
        reduction_factor: the ratio of each rung to the one below it.
    """

    min_resource: float
    max_resource: float | None = None
    reduction_factor: int = 3

    def check(self) -> None:
        super().check()
        low, high = self.min_resource, self.max_resource
        if not 0.0 < low < math.inf:
            raise ValueError(f'min_resource must be greater than 0: {low}')
        if high is not None and not low < high < math.inf:
            raise ValueError(f'max_resource ({high}) must be above min_resource ({low})')
        require_at_least(self, 2, 'reduction_factor')
        if self.unit == 'seconds' and high is None:
            raise ValueError('max_resource must be given in seconds: no trial knows its own')

    @property
    def needs_max_resource(self) -> bool:
        return super().needs_max_resource or self.max_resource is None

    def onsets(self, max_resource: float) -> dict[str, float]:
        return {**super().onsets(max_resource), 'min_resource': self.min_resource}

    def rung_level_function(self) -> Callable[[TrialCurve], Sequence[float]]:
        """The function that `rung_levels` calls.

        It raises ValueError for a trial of unknown `max_resource` if the scheduler has none.
        """
        # Read once: a study may have thousands of trials.
        lowest, highest = self.min_resource, self.max_resource
        factor, grace_period = self.reduction_factor, self.grace_period

        def levels(curve: TrialCurve) -> Sequence[float]:
            end = curve.max_resource if highest is None else highest
            if end is None:
                raise ValueError('max_resource must be given where no trial knows its own')
            return _rung_levels(lowest, end, factor, grace_period * (curve.max_resource or 0.0))

        return levels

    def rung_levels(self, curve: TrialCurve) -> Sequence[float]:
        return self.rung_level_function()(curve)

    def rung_rewards(self, curve: TrialCurve) -> dict[float, float]:
        """The reward of a trial at each rung that it has reached."""
        return rewards_at_rungs(curve, self.rung_levels(curve))

    def rewards_at(self, rung: float, curves: Sequence[TrialCurve]) -> Array:
        """The reward of each trial at a rung; NaN where it has not reached the rung."""
        levels = self.rung_level_function()

        def reward(curve: TrialCurve) -> float:
            return rewards_at_rungs(curve, levels(curve)).get(rung, math.nan)

        return np.array(column(curves, f'reward at {rung!r}', reward), float)

    def rung_reached_now(self, curve: TrialCurve) -> float | None:
        """The highest rung that a trial reaches with its last measurement; None if it reaches none.

        After a pause, only higher rungs count.
        """
        last = curve.measurements[-1]
        # A promoted trial is measured again up to where it was paused.
        if last.reward is None or (curve.pauses and last.step <= curve.pauses[-1]):
            return None
        levels = self.rung_levels(curve)
        rung = rung_at(curve, levels, last.step)
        paused = rung_at(curve, levels, curve.pauses[-1]) if curve.pauses else None
        return None if rung is None or rung <= (paused or 0.0) else rung

    def rung_first_reached_now(self, curve: TrialCurve) -> float | None:
        """The rung of `rung_reached_now`, unless an earlier measurement has reached it."""
        rung = self.rung_reached_now(curve)
        earlier = zip(curve.resources[:-1], curve.measurements[:-1], strict=True)
        if rung is None or any(at >= rung for at, each in earlier if each.reward is not None):
            return None
        return rung

    def rung_label(self, rung: float) -> str:
        """The text for a rung in messages."""
        return f'the rung of {rung:.6g} {self.unit}'


def default_min_resource(evaluated: Iterable[float], max_resource: float) -> float:
    """The lowest rung by default: the first evaluation from a 27th of the resource on.

    Example:
        >>> default_min_resource(range(100, 10001, 100), 10000)
        400
    """
    return min(each for each in evaluated if each * 27 >= max_resource)


def first_rung(experiment: 'Experiment') -> dict[str, float]:
    """The default of `min_resource` by name; {} if the number of steps is a decision."""
    steps = experiment.sym_get('train.num_train_steps')
    every = getattr(experiment.train.evaluation, 'every', None)
    if not isinstance(steps, int) or not isinstance(every, int):
        return {}
    return {'min_resource': default_min_resource([*range(every, steps, every), steps], steps)}


def resource_at(curve: TrialCurve, step: int) -> float:
    """The resource of a trial at its last measurement up to a step; 0 before the first.

    Example:
        >>> from paxtune.objectives.measurement import Measurement
        >>> measurements = [Measurement(10, {}), Measurement(20, {})]
        >>> curve = TrialCurve(1, 'running', measurements, [80.0, 160.0])
        >>> [resource_at(curve, step) for step in (9, 10, 30)]
        [0.0, 80.0, 160.0]
    """
    count = bisect.bisect_right(curve.measurements, step, key=operator.attrgetter('step'))
    return curve.resources[count - 1] if count else 0.0


def rung_at(curve: TrialCurve, levels: Sequence[float], step: int) -> float | None:
    """The highest rung that a trial has reached at a step; None below the first."""
    count = bisect.bisect_right(levels, resource_at(curve, step))
    return levels[count - 1] if count else None


def pause_rungs(
    curves: Iterable[TrialCurve], levels: Callable[[TrialCurve], Sequence[float]]
) -> dict[int, float | None]:
    """The rungs at which trials are paused, by their numbers."""
    return {
        curve.id: rung_at(curve, levels(curve), curve.pauses[-1])
        for curve in curves
        if curve.state == 'paused'
    }


def final_reward(curve: TrialCurve) -> float | None:
    """The last reward of a completed trial; None of any other."""
    return last_reward(curve.measurements) if curve.state == 'completed' else None


def rewards_at_rungs(curve: TrialCurve, levels: Sequence[float]) -> dict[float, float]:
    found: dict[float, float] = {}
    index = 0
    for rung in levels:
        index = bisect.bisect_left(curve.resources, rung, index)
        value = None
        while index < len(curve.resources) and value is None:
            value = curve.measurements[index].reward
            index += 1 if value is None else 0
        if value is None:
            break
        found[rung] = value
    return found


@functools.lru_cache(maxsize=1024)
def _rung_levels(lowest: float, end: float, factor: int, least: float) -> tuple[float, ...]:
    """The rungs below `end`, without those below `least`."""
    found = []
    while lowest < end:
        found.append(lowest)
        lowest *= factor
    return tuple(rung for rung in found if rung >= least)
