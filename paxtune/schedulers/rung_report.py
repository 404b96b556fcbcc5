"""Reports how well the rungs of a study predicted the final ranking.

Schedulers decide early, which helps only if early ranks are like the final ones. Where learning
rates decay, curves may cross late: then a stopped trial might have won.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from paxtune.schedulers.base import Scheduler, TrialCurve
from paxtune.schedulers.rungs import final_reward

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

SHARES = (0.1, 0.25, 0.5)
"""The rungs of schedulers without any, as shares of `max_resource`; as in AlgoPerf's analysis."""

_MIN_PAIRS = 5
_MIN_CORRELATION = 0.5


@dataclasses.dataclass(frozen=True)
class Rung:
    """The trials that reached a rung, and how well their rewards there predicted later ones.

    A trial reaches a rung at its first measurement with a reward from there on, and counts with
    that reward. Correlations are rank correlations (Spearman's), from -1 to 1; None with fewer than
    two pairs, or if all rewards of one side are equal. Trials that were stopped at a rung have no
    later rewards: the correlations are over trials that went on, which are more alike than all.

    Attributes:
        resource: the rung, in the scheduler's unit.
        trials: the number of trials that reached it.
        beyond: the number of them with a later measurement.
        stopped: the number of them that were stopped there.
        paused: the number of them that are paused there.
        next: the correlation of the rewards here with those at the next rung, or at the end.
        next_pairs: the number of trials in that correlation.
        end: the correlation with the last rewards of completed trials.
        end_pairs: the number of trials in that correlation.
    """

    resource: float
    trials: int
    beyond: int
    stopped: int
    paused: int
    next: float | None
    next_pairs: int
    end: float | None
    end_pairs: int


COLUMNS = tuple(field.name for field in dataclasses.fields(Rung))


class RungValue(NamedTuple):
    """The measurement at which a trial reaches a rung."""

    step: int
    reward: float


_Track: TypeAlias = tuple[TrialCurve, dict[float, RungValue], float | None]
"""A trial, its values at the rungs that it has reached, and its last reward if it completed."""


def rung_report(curves: Sequence[TrialCurve], scheduler: Scheduler) -> list[Rung]:
    """Reports on each rung that a trial has reached, from the lowest.

    Args:
        curves: all trials of a study that are not infeasible.
        scheduler: the scheduler. If it has no rungs, they are at `SHARES` of the largest known
            `max_resource`, or else of the largest resource of a completed trial.
    """
    levels = _rung_levels(curves, scheduler)
    tracks = [
        (curve, _reached(curve, own), final_reward(curve))
        for curve, own in zip(curves, levels, strict=True)
    ]
    rungs = sorted({rung for _, reached, _ in tracks for rung in reached})
    return [_rung(rung, [track for track in tracks if rung in track[1]]) for rung in rungs]


def rungs_reached(curves: Sequence[TrialCurve], scheduler: Scheduler) -> dict[int, float]:
    """The highest rung that each trial has reached, by its number; empty without rungs."""
    reached = {curve.id: _reached(curve, scheduler.rung_levels(curve)) for curve in curves}
    return {id: max(rungs) for id, rungs in reached.items() if rungs}


def warning(rungs: Sequence[Rung], unit: str) -> str:
    """The warning about rungs that did not predict later rewards; empty if all did.

    Example:
        >>> print(warning([Rung(250.0, 12, 8, 4, 0, 0.9, 8, 0.24, 8)], 'steps'))
        Warning: early ranks were misleading. The rank correlation of the rewards
          at 250 steps with those at the end is 0.24 (8 trials)
        Trials that are stopped or paused there may be the best. Decide later (a larger
        min_resource, or a grace_period), or decay the learning rate up to each rung (DecayAtRungs).
    """
    found = []
    for rung in rungs:
        later = [('at the end', rung.end, rung.end_pairs)]
        if rung.next_pairs != rung.end_pairs or rung.next != rung.end:
            later.insert(0, ('at the next rung', rung.next, rung.next_pairs))
        here = f'  at {rung.resource:.6g} {unit} with those'
        found += [
            f'{here} {where} is {correlation:.2f} ({pairs} trials)'
            for where, correlation, pairs in later
            if correlation is not None and correlation < _MIN_CORRELATION and pairs >= _MIN_PAIRS
        ]
    if not found:
        return ''
    return '\n'.join(
        [
            'Warning: early ranks were misleading. The rank correlation of the rewards',
            *found,
            'Trials that are stopped or paused there may be the best. Decide later (a larger',
            'min_resource, or a grace_period), or decay the learning rate up to each rung '
            '(DecayAtRungs).',
        ]
    )


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation; equal numbers share the mean of their ranks.

    None with fewer than two pairs, or if all numbers of one side are equal.

    Example:
        >>> rank_correlation([(1.0, 10.0), (2.0, 20.0), (3.0, 40.0), (3.0, 40.0)])
        1.0
    """
    # `scipy.stats` takes a second to import.
    if len(pairs) < 2:
        return None
    one, other = (ranks - ranks.mean() for ranks in map(_ranks, zip(*pairs, strict=True)))
    squares = float(one @ one) * float(other @ other)
    if squares == 0.0:
        return None
    return max(-1.0, min(1.0, float(one @ other) / math.sqrt(squares)))


def _ranks(values: Sequence[float]) -> Array:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    means: Array = np.cumsum(counts) - (counts - 1) / 2.0
    return means[which]


def _rung_levels(curves: Sequence[TrialCurve], scheduler: Scheduler) -> list[Sequence[float]]:
    own = [scheduler.rung_levels(curve) for curve in curves]
    if any(own):
        return own
    known = [curve.max_resource for curve in curves if curve.max_resource is not None] or [
        curve.resources[-1] for curve in curves if curve.state == 'completed' and curve.resources
    ]
    return [[share * max(known) for share in SHARES] if known else [] for _ in curves]


def _reached(curve: TrialCurve, levels: Sequence[float]) -> dict[float, RungValue]:
    measured = [
        (resource, RungValue(each.step, each.reward))
        for resource, each in zip(curve.resources, curve.measurements, strict=True)
        if each.reward is not None
    ]
    if curve.state == 'completed':
        measured = measured[:-1]
    inherited = _inherited(curve)
    found = {}
    for rung in levels:
        if rung <= inherited:
            continue
        there = next((value for resource, value in measured if resource >= rung), None)
        if there is not None:
            found[rung] = there
    return found


def _inherited(curve: TrialCurve) -> float:
    """The resource of the weights that a forked trial began with."""
    if curve.forked_from is None or not curve.measurements:
        return 0.0
    # Exact in steps; else, the steps up to the first measurement cost about the same.
    step = curve.measurements[0].step
    return curve.resources[0] * min(1.0, curve.forked_from[1] / max(step, 1))


def _rung(rung: float, here: Sequence[_Track]) -> Rung:
    stays = [
        curve.state for curve, values, _ in here if curve.measurements[-1].step == values[rung].step
    ]
    at_end = [(values[rung].reward, end) for _, values, end in here if end is not None]
    at_next = [
        (values[rung].reward, value)
        for _, values, end in here
        if (value := _reward_after(rung, values, end)) is not None
    ]
    return Rung(
        resource=rung,
        trials=len(here),
        beyond=len(here) - len(stays),
        stopped=stays.count('stopped'),
        paused=stays.count('paused'),
        next=rank_correlation(at_next),
        next_pairs=len(at_next),
        end=rank_correlation(at_end),
        end_pairs=len(at_end),
    )


def _reward_after(rung: float, values: dict[float, RungValue], end: float | None) -> float | None:
    """The reward at the trial's next rung above this one; at its end without one."""
    # Several rungs may lie between two measurements: then they have the same reward.
    later = [each for each in values if values[each].step > values[rung].step]
    return values[min(later)].reward if later else end
