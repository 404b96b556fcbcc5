import contextlib
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paxtune.algorithms.base import SuggestionContext
from paxtune.algorithms.gp.blas import one_blas_thread
from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curves, Pause, Promote, TrialCurve, column
from paxtune.schedulers.correlation import MIN_TRIALS, Link, expected_correlation, link
from paxtune.schedulers.end_prediction import Array, predict_ends
from paxtune.schedulers.rungs import RungScheduler, final_reward, pause_rungs
from paxtune.schedulers.survivors import share_with_best, survivor_shares

PROBE_EVERY, FIRST_PROBE = 32, 8
"""Trials 8, 40, 72, … are probes."""

_FEW = 500  # Trials whose linear algebra OpenBLAS gives to one thread.


@dataclasses.dataclass(frozen=True)
class Trust:
    """A rung's weight in decisions.

    Attributes:
        rung: the resource.
        ended: the number of trials that reached their ends.
        correlation: the expected rank correlation of rewards here with those at the end.
        share: the share of the trials here that goes on.
    """

    rung: float
    ended: int
    correlation: float
    share: float


@dataclasses.dataclass(frozen=True)
class Standing:
    """The trials that reached a rung.

    Attributes:
        trust: the rung's weight.
        ranked: the trials by their predicted ends, best first.
    """

    trust: Trust
    ranked: Sequence[int]

    @property
    def count(self) -> int:
        """The number of trials that go on."""
        return math.floor(self.trust.share * len(self.ranked) + 1e-9)

    @property
    def last_count(self) -> int:
        """The number of trials that go on at least, when no more begin."""
        share = share_with_best(self.trust.correlation, len(self.ranked))
        return math.ceil(share * len(self.ranked))


class _Row(NamedTuple):
    """The parts of a curve that decisions need: read once, since a study may have thousands.

    Attributes:
        levels: its rungs.
        rewards: at these, and the final one; None for none.
    """

    levels: Sequence[float]
    rewards: Sequence[float | None]
    id: int
    point: Sequence[float]
    max_resource: float | None


class Adaptive(RungScheduler):
    """Promotion at rungs, as careful as the rungs are misleading.

    Trials that went on show how well the ranks at a rung predict those at the next rung, or at the
    end. They were selected at the rung, and the estimate is corrected for that. One trial in 32 is
    a probe: it is trained to its end for the sake of its number alone. From the correlations
    follows the share of trials that goes on from each rung: the best 1 / reduction_factor where
    ranks are reliable, all of them where ranks mean nothing. Other trials are paused. They are not
    lost: when the share becomes larger, the best of them go on.

    Trials are ranked by their predicted ends: see `paxtune.schedulers.end_prediction`. So a long
    warm-up, which delays a trial, is no reason to pause it, once others have shown that it pays.
    The correlations remain those of the rewards: predictions fit the trials that made them too well
    to be judged by these.

    Before trials have ended, ranks count as rather reliable. When the study has no room for more
    trials, as many go on as contain the trial that ends best with a chance of 90 %.

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
        >>> action = Adaptive(min_resource=10).next_action(curves, loss, context, may_begin=True)
        >>> action.trial, action.reason.split(', ')[1]
        (2, 'not checked by three ends yet: 33% go on')
    """

    pauses = True

    def _decide(self, curve: TrialCurve, others: Curves, reward: Reward | None) -> Pause | None:
        self._score(reward)
        rung = self.rung_first_reached_now(curve)
        if rung is None or is_probe(curve.id):
            return None
        standings = self._standings([self._row(curve), *self._rows(others)], reward)
        standing = next(each for each in standings if each.trust.rung == rung)
        rank = standing.ranked.index(curve.id) + 1
        if rank <= standing.count:
            return None
        last = curve.measurements[-1]
        return Pause(
            f'reward {last.reward:.6g} at step {last.step} is {self._place(rank, standing)}'
        )

    def next_action(
        self, curves: Curves, reward: Reward | None, context: SuggestionContext, may_begin: bool
    ) -> Promote | None:
        self._score(reward)
        paused_at = pause_rungs(curves, self.rung_level_function())
        if not paused_at:
            return None
        for standing in reversed(self._standings(self._rows(curves), reward)):
            count = standing.count if may_begin else max(standing.count, standing.last_count)
            for rank, number in enumerate(standing.ranked[:count], 1):
                if paused_at.get(number) == standing.trust.rung:
                    return Promote(number, self._place(rank, standing))
        return None

    def _row(self, curve: TrialCurve) -> _Row:
        levels = self.rung_levels(curve)
        rewards = (*map(self.rung_rewards(curve).get, levels), final_reward(curve))
        return _Row(levels, rewards, curve.id, curve.point, curve.max_resource)

    def _rows(self, curves: Curves) -> Sequence[_Row]:
        return column(curves, 'row', self._row)

    def _standings(self, rows: Sequence[_Row], reward: Reward | None) -> list[Standing]:
        """The rungs from the lowest, each with the trials that reached it."""
        rungs, rewards = _table(rows)
        # A score is the reward, or its negative.
        scores = self._score(reward)(1.0) * rewards
        points = np.array([row.point for row in rows])
        # Several threads spin longer than they compute.
        with one_blas_thread() if len(rows) > _FEW else contextlib.nullcontext():
            predicted = predict_ends(scores, points)
        numbers = np.array([row.id for row in rows])
        return [
            Standing(trust, _best_first(column, numbers))
            for trust, column in zip(self._trusts(rows, rungs, rewards), predicted.T, strict=True)
        ]

    def trusts(self, curves: Curves) -> list[Trust]:
        """Returns the evidence of these trials for each rung, from the lowest."""
        rows = self._rows(curves)
        return self._trusts(rows, *_table(rows))

    def _trusts(self, rows: Sequence[_Row], rungs: Sequence[float], rewards: Array) -> list[Trust]:
        if not rungs:
            return []
        known = [row.max_resource for row in rows if row.max_resource is not None]
        end = max(known) if self.max_resource is None else self.max_resource
        progress = [rung / end for rung in rungs]
        to_next, to_end = links(rewards)
        # Curves may turn after a rung, or wander between rungs: the more careful estimate counts.
        careful = [
            min(
                expected_correlation(to_next[i:], progress[i]),
                expected_correlation([to_end[i]], progress[i]),
            )
            for i in range(len(rungs))
        ]
        expected = _rising(careful)
        shares = survivor_shares(expected, progress, self.reduction_factor)
        has_ended = np.isfinite(rewards[:, -1:])
        ended = np.sum(np.isfinite(rewards[:, :-1]) & has_ended, axis=0).tolist()
        return [Trust(*each) for each in zip(rungs, ended, expected, shares, strict=True)]

    def findings(self, curves: Curves) -> list[str]:
        return [
            f'{each.share:.0%} of the trials go on from {self.rung_label(each.rung)}, '
            f'{_evidence(each)}'
            for each in self.trusts(curves)
        ]

    def _place(self, rank: int, standing: Standing) -> str:
        trust, trials = standing.trust, len(standing.ranked)
        label = self.rung_label(trust.rung)
        place = f'number {rank} of {trials} trials by predicted end at {label}'
        return f'{place}, {_evidence(trust)}: {trust.share:.0%} go on'


def _table(rows: Sequence[_Row]) -> tuple[list[float], Array]:
    """The rungs, and rewards [trials, rungs + 1]: the last ones are final; NaN for none."""
    kinds = {row.levels for row in rows}
    rungs = sorted({rung for levels in kinds for rung in levels})
    rewards = [row.rewards for row in rows]
    if len(kinds) > 1:
        rewards = [
            (*map(dict(zip(row.levels, row.rewards, strict=False)).get, rungs), row.rewards[-1])
            for row in rows
        ]
    return rungs, np.array(rewards, float).reshape(len(rows), len(rungs) + 1)


def is_probe(number: int) -> bool:
    """True for a trial that is trained to its end because of its number.

    Example:
        >>> [number for number in range(1, 100) if is_probe(number)]
        [8, 40, 72]
    """
    return number % PROBE_EVERY == FIRST_PROBE


def _best_first(scores: Array, numbers: np.ndarray) -> list[int]:
    """The numbers of the trials that have a score; of equal ones, the first comes first."""
    order = np.lexsort((numbers, -scores))
    return [int(number) for number in numbers[order[: np.isfinite(scores).sum()]]]


def links(rewards: Array) -> tuple[list[Link], list[Link]]:
    """Links each rung to the next one that a trial has reached, or its end; and to the end.

    Args:
        rewards: [trials, rungs + 1]; the last ones are final. NaN where there is none.
    """
    end = following = rewards[:, -1]
    to_next, to_end = [], []
    for here in rewards[:, -2::-1].T:
        there = np.isfinite(here)
        to_next.append(link(here[there], following[there]))
        to_end.append(link(here[there], end[there]))
        following = np.where(there, here, following)
    return to_next[::-1], to_end[::-1]


def _evidence(trust: Trust) -> str:
    if trust.ended < MIN_TRIALS:
        return 'not checked by three ends yet'
    return (
        f'whose rewards order the ends of {trust.ended} trials with a rank correlation of about '
        f'{trust.correlation:.2f}'
    )


def _rising(values: Sequence[float]) -> list[float]:
    """The values between the largest so far and the smallest from there on: they never fall."""
    largest = itertools.accumulate(values, max)
    smallest = [*itertools.accumulate(reversed(values), min)][::-1]
    return [(one + other) / 2.0 for one, other in zip(largest, smallest, strict=True)]
