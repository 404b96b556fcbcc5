"""How well a study's rungs predicted its ends.

Policies judge trials early, which is worth something only where early ranks are like those at the
end. Where learning rates decay, curves may cross late: then those that are stopped would have won.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from paxtune.schedulers.base import Curve, Policy

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

SHARES = (0.1, 0.25, 0.5)
"""Of the budget: the rungs where a policy has none, as in AlgoPerf's analysis."""

_LEAST_PAIRS = 5
_LEAST_CORRELATION = 0.5


@dataclasses.dataclass(frozen=True)
class Rung:
    """What came of the trials that passed a rung.

    A trial passes a rung at its first measurement with a reward from there on, and counts with that
    reward. Correlations are those of ranks (Spearman's), from -1 to 1; None where there are fewer
    than two pairs, or all rewards of one side are equal. Trials that were stopped at a rung have no
    later rewards: correlations are only of those that went on, which are more alike than all were.

    Attributes:
        budget: where the rung is, in the policy's unit.
        trials: how many passed it.
        beyond: how many of them were measured after it.
        stopped: how many were stopped there.
        paused: how many are paused there.
        next: the correlation of the rewards here with those at the next rung, or at the end.
        next_pairs: of how many trials.
        end: the correlation with the last rewards of completed trials.
        end_pairs: of how many trials.
    """

    budget: float
    trials: int
    beyond: int
    stopped: int
    paused: int
    next: float | None
    next_pairs: int
    end: float | None
    end_pairs: int


COLUMNS = tuple(field.name for field in dataclasses.fields(Rung))


class Passage(NamedTuple):
    """Where a trial passes a rung, and what it is worth there."""

    step: int
    reward: float


def rung_report(curves: Sequence[Curve], policy: Policy) -> list[Rung]:
    """What came of each rung that a trial has passed, by budget.

    Args:
        curves: all trials of a study that are not infeasible.
        policy: says where its rungs are. Where it has none, they are at `SHARES` of the largest
            budget that is known, or else of what a completed trial has spent.
    """
    rungs = _rungs(curves, policy)
    passed = [_passages(curve, own) for curve, own in zip(curves, rungs, strict=True)]
    ends = [_end(curve) for curve in curves]
    budgets = sorted(set(itertools.chain.from_iterable(passed)))
    return [_rung(budget, curves, passed, ends) for budget in budgets]


def rungs_reached(curves: Sequence[Curve], policy: Policy) -> dict[int, float]:
    """The highest rung that each trial has passed, by its number; none in a policy without."""
    reached = {curve.id: _passages(curve, policy.rungs(curve)) for curve in curves}
    return {id: max(passages) for id, passages in reached.items() if passages}


def warning(rungs: Sequence[Rung], unit: str) -> str:
    """What people should know where rungs did not predict what came after them; else empty.

    Args:
        rungs: as `rung_report` finds them.
        unit: what their budgets are counted in.

    Example:
        >>> print(warning([Rung(250.0, 12, 8, 4, 0, 0.9, 8, 0.24, 8)], 'steps'))
        Warning: early ranks fooled. The rank correlation of the rewards
          at 250 steps with those at the end is 0.24 (8 trials)
        Trials that are stopped or paused there may be the best. Judge them later (a larger
        min_budget, or grace), or let the learning rate decay up to each rung (DecayAtRungs).
    """
    found = []
    for rung in rungs:
        told = [('at the end', rung.end, rung.end_pairs)]
        if rung.next_pairs != rung.end_pairs or rung.next != rung.end:
            told.insert(0, ('at the next rung', rung.next, rung.next_pairs))
        here = f'  at {rung.budget:.6g} {unit} with those'
        found += [
            f'{here} {where} is {correlation:.2f} ({pairs} trials)'
            for where, correlation, pairs in told
            if correlation is not None
            and correlation < _LEAST_CORRELATION
            and pairs >= _LEAST_PAIRS
        ]
    if not found:
        return ''
    return '\n'.join(
        [
            'Warning: early ranks fooled. The rank correlation of the rewards',
            *found,
            'Trials that are stopped or paused there may be the best. Judge them later (a larger',
            'min_budget, or grace), or let the learning rate decay up to each rung (DecayAtRungs).',
        ]
    )


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's, where equal numbers share the mean of their ranks.

    None where there are fewer than two pairs, or all numbers of one side are equal.

    Example:
        >>> rank_correlation([1.0, 2.0, 3.0, 3.0], [10.0, 20.0, 40.0, 40.0])
        1.0
    """
    # `scipy.stats` takes a second to import.
    if len(left) < 2:
        return None
    one, other = (ranks - ranks.mean() for ranks in map(_ranks, (left, right)))
    squares = float(one @ one) * float(other @ other)
    if squares == 0.0:
        return None
    return max(-1.0, min(1.0, float(one @ other) / math.sqrt(squares)))


def _ranks(values: Sequence[float]) -> Array:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    means: Array = np.cumsum(counts) - (counts - 1) / 2.0
    return means[which]


def _rungs(curves: Sequence[Curve], policy: Policy) -> list[Sequence[float]]:
    own = [policy.rungs(curve) for curve in curves]
    if any(own):
        return own
    budgets = [curve.budget for curve in curves if curve.budget is not None]
    spent = [curve.spent[-1] for curve in curves if curve.state == 'completed' and curve.spent]
    known = budgets or spent
    return [[share * max(known) for share in SHARES] if known else [] for _ in curves]


def _passages(curve: Curve, rungs: Sequence[float]) -> dict[float, Passage]:
    """Where the trial passes each rung; what it reaches only with its end is none."""
    measured = [
        (spent, Passage(each.step, each.reward))
        for spent, each in zip(curve.spent, curve.measurements, strict=True)
        if each.reward is not None
    ]
    if curve.state == 'completed':
        measured = measured[:-1]
    inherited = _inherited(curve)
    passages = {}
    for rung in rungs:
        if rung <= inherited:
            continue
        there = next((passage for spent, passage in measured if spent >= rung), None)
        if there is not None:
            passages[rung] = there
    return passages


def _inherited(curve: Curve) -> float:
    """What had been spent on the weights that a trial was forked with."""
    if curve.forked_from is None or not curve.measurements:
        return 0.0
    # In steps that is exact; else, the steps up to its first measurement cost about the same.
    step = curve.measurements[0].step
    return curve.spent[0] * min(1.0, curve.forked_from[1] / max(step, 1))


def _end(curve: Curve) -> float | None:
    """The last reward of a trial that was completed."""
    if curve.state != 'completed':
        return None
    rewards = [each.reward for each in curve.measurements if each.reward is not None]
    return rewards[-1] if rewards else None


def _rung(
    budget: float,
    curves: Sequence[Curve],
    passed: Sequence[dict[float, Passage]],
    ends: Sequence[float | None],
) -> Rung:
    here = [
        (curve, passages, end)
        for curve, passages, end in zip(curves, passed, ends, strict=True)
        if budget in passages
    ]
    stays = [
        curve.state
        for curve, passages, _ in here
        if curve.measurements[-1].step == passages[budget].step
    ]
    at_end = [(passages[budget].reward, end) for _, passages, end in here if end is not None]
    at_next = [
        (passages[budget].reward, value)
        for _, passages, end in here
        if (value := _value_after(budget, passages, end)) is not None
    ]
    return Rung(
        budget=budget,
        trials=len(here),
        beyond=len(here) - len(stays),
        stopped=stays.count('stopped'),
        paused=stays.count('paused'),
        next=rank_correlation(*_sides(at_next)),
        next_pairs=len(at_next),
        end=rank_correlation(*_sides(at_end)),
        end_pairs=len(at_end),
    )


def _value_after(budget: float, passages: dict[float, Passage], end: float | None) -> float | None:
    """The reward at the trial's next rung above this one; at its end where there is none."""
    # Several rungs may lie between two measurements: then they have the same reward.
    later = [rung for rung in passages if passages[rung].step > passages[budget].step]
    return passages[min(later)].reward if later else end


def _sides(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [left for left, _ in pairs], [right for _, right in pairs]
