import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paxtune.algorithms.base import SuggestionContext
from paxtune.algorithms.gp.blas import one_blas_thread
from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Curves, Pause, Promote, TrialCurve, column
from paxtune.schedulers.end_prediction import Array, predict_ends
from paxtune.schedulers.rungs import RungScheduler, final_reward, pause_rungs, rewards_at_rungs
from paxtune.schedulers.winners import MIN_ENDS, is_drawn, rescue_chance, survivals, winners

_FEW = 500  # Trials whose linear algebra OpenBLAS gives to one thread.


@dataclasses.dataclass(frozen=True)
class Trust:
    """A rung's weight in decisions.

    Attributes:
        rung: the resource.
        progress: the same as a share of a whole trial.
        ended: the number of trials that reached their ends.
        winners: the number of them that ended best.
        kept: the number of winners whose rewards here are among the best `share`.
        survival: the share of all winners that goes on, by a careful estimate.
        share: the share of the trials here that goes on.
        last_share: the same at least, when no more trials begin.
        density: of winners by place; empty where better places come first.
    """

    rung: float
    progress: float
    ended: int
    winners: int
    kept: int
    survival: float
    share: float
    last_share: float
    density: Sequence[float] = ()


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
        return math.ceil(self.trust.last_share * len(self.ranked))

    def best_of(self, ranks: Sequence[int], least: float) -> int | None:
        """The rank with the most winners around it; None if all have fewer than new trials.

        Args:
            ranks: to choose from, ascending.
            least: the density of winners that a rank must have.
        """
        if not self.trust.density or not ranks:
            return ranks[0] if ranks else None
        count = len(self.trust.density)
        places = (np.array(ranks) - 0.5) / len(self.ranked) * count - 0.5
        densities = np.interp(places, np.arange(count), self.trust.density)
        best = int(np.argmax(densities))
        return ranks[best] if densities[best] >= least else None

    def place(self, number: int) -> float | None:
        """The rank of a trial by the number of trials; None if it has not been here."""
        with contextlib.suppress(ValueError):
            return (self.ranked.index(number) + 1) / len(self.ranked)
        return None


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
    """Promotion at rungs, as careful as the rungs are misleading about winners.

    A rung is trusted if the trials that end best stood in the part that goes on there. Of the
    trials that a rung cuts, some are rescued: they are trained to their ends, for the sake of their
    numbers, so that lost winners become known. One in 24 is rescued next to the part that goes on,
    and one in 64 behind that. From trial 96 on there are more of them, up to four times as many.

    The share that goes on has the least compute for each winner: the best 1 / reduction_factor
    where winners survive, more of them, up to all, where winners would be lost. See
    `paxtune.schedulers.winners`.
    Other trials are paused. They are not lost: when the share becomes larger, those go on first
    that stand where winners stood.

    Trials are ranked by their predicted ends: see `paxtune.schedulers.end_prediction`. So a long
    warm-up, which delays a trial, is no reason to pause it, once others have shown that it pays.
    The places of winners remain those of their rewards: predictions fit the trials that made them
    too well to be judged by these.

    Before trials have ended, rungs count as rather reliable. When the study has no room for more
    trials, as many go on as contain the winners with a chance of 80 %.

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
        (2, 'not checked by four ends yet: 33% go on')
    """

    pauses = True

    def _decide(self, curve: TrialCurve, others: Curves, reward: Reward | None) -> Pause | None:
        self._score(reward)
        rung = self.rung_first_reached_now(curve)
        if rung is None:
            return None
        standings = self._standings([*self._rows([curve]), *self._rows(others)], reward)
        standing = next(each for each in standings if each.trust.rung == rung)
        rank = standing.ranked.index(curve.id) + 1
        if rank <= standing.count:
            return None
        if is_drawn(curve.id, _rescue_chance(curve.id, standings)):
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
            rung = standing.trust.rung
            paused = [
                rank
                for rank, number in enumerate(standing.ranked[:count], 1)
                if paused_at.get(number) == rung
            ]
            # Where all go on, new trials have a density of 1; the rest of a paused one costs less.
            new_ones = may_begin and standing.trust.share == 1.0
            rank = standing.best_of(paused, 1.0 - standing.trust.progress if new_ones else 0.0)
            if rank is not None:
                return Promote(standing.ranked[rank - 1], self._place(rank, standing))
        return None

    def _rows(self, curves: Curves) -> Sequence[_Row]:
        levels_of = self.rung_level_function()

        def row(curve: TrialCurve) -> _Row:
            levels = levels_of(curve)
            rewards = (*map(rewards_at_rungs(curve, levels).get, levels), final_reward(curve))
            return _Row(levels, rewards, curve.id, curve.point, curve.max_resource)

        return column(curves, 'row', row)

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
        ranked = [_best_first(column, numbers) for column in predicted.T]
        trusts = self._trusts(rows, rungs, scores)
        return [Standing(*each) for each in zip(trusts, ranked, strict=True)]

    def trusts(self, curves: Curves, reward: Reward | None) -> list[Trust]:
        """Returns the evidence of these trials for each rung, from the lowest."""
        rows = self._rows(curves)
        rungs, rewards = _table(rows)
        return self._trusts(rows, rungs, self._score(reward)(1.0) * rewards)

    def _trusts(self, rows: Sequence[_Row], rungs: Sequence[float], scores: Array) -> list[Trust]:
        if not rungs:
            return []
        known = [row.max_resource for row in rows if row.max_resource is not None]
        end = max(known) if self.max_resource is None else self.max_resource
        reached = np.isfinite(scores)
        best = winners(scores[:, -1], int(reached.any(axis=1).sum()))
        places = _places(scores[:, :-1], best)
        numbers = np.array([rows[at].id for at in best])
        levels = [rung / end for rung in rungs]
        found = survivals(places, numbers, _went_on(reached), levels, self.reduction_factor)
        ended = np.sum(reached[:, :-1] & reached[:, -1:], axis=0).tolist()
        there = np.isfinite(places).sum(axis=0).tolist()
        return [
            Trust(
                rung, rung / end, ended[i], there[i], int(np.sum(places[:, i] <= each.share)),
                each.winners, each.share, each.last_share, each.density,
            )
            for i, (rung, each) in enumerate(zip(rungs, found, strict=True))
        ]  # fmt: skip

    def findings(self, curves: Curves, reward: Reward | None) -> list[str]:
        return [
            f'{each.share:.0%} of the trials go on from {self.rung_label(each.rung)}, '
            f'{_evidence(each)}'
            for each in self.trusts(curves, reward)
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


def _best_first(scores: Array, numbers: np.ndarray) -> list[int]:
    """The numbers of the trials that have a score; of equal ones, the first comes first."""
    order = np.lexsort((numbers, -scores))
    return [int(number) for number in numbers[order[: np.isfinite(scores).sum()]]]


def _rescue_chance(number: int, standings: Sequence[Standing]) -> float:
    """The chance of the rescue of a trial, by the rungs that it has reached."""
    pairs = [(each.place(number), each.trust.share) for each in standings]
    there = [(place, share) for place, share in pairs if place is not None]
    return rescue_chance(number, [place for place, _ in there], [share for _, share in there])


def _places(scores: Array, trials: np.ndarray) -> Array:
    """The places of some trials at each rung, from 0 to 1, [trials, rungs]; NaN where one was not.

    Trials with equal scores share the place in their middle.
    """
    found = np.full((len(trials), scores.shape[1]), math.nan)
    for rung, there in enumerate(-scores.T):
        ordered, own = np.sort(there), there[trials]  # NaN comes last.
        ends = np.searchsorted(ordered, own) + np.searchsorted(ordered, own, 'right')
        count = max(int(np.isfinite(there).sum()), 1)
        found[:, rung] = np.where(np.isfinite(own), ends / 2.0 / count, math.nan)
    return found


def _went_on(reached: np.ndarray) -> list[float]:
    """The share of the trials at each rung that was trained beyond.

    Args:
        reached: True where a trial has a reward, [trials, rungs + 1]; the last ones are final.
    """
    later = np.logical_or.accumulate(reached[:, ::-1], axis=1)[:, ::-1][:, 1:]
    there = reached[:, :-1]
    shares: list[float] = (
        np.sum(there & later, axis=0) / np.maximum(there.sum(axis=0), 1)
    ).tolist()
    return shares


def _evidence(trust: Trust) -> str:
    if trust.ended < MIN_ENDS:
        return 'not checked by four ends yet'
    return (
        f'where {trust.kept} of the {trust.winners} trials that ended best, of {trust.ended}, '
        f'stood in the best {trust.share:.0%}'
    )
