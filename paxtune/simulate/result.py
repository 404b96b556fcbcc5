"""The result of a simulated study."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from paxtune.schedulers.rung_report import rank_correlation
from paxtune.simulate.table import CurveTable
from paxtune.study.record import Status
from paxtune.study.trial import Trial


class Progress(NamedTuple):
    """A completed trial that was the best so far.

    Attributes:
        time: of the simulated clock.
        compute: of all trials together by then.
        reward: of the trial.
    """

    time: float
    compute: float
    reward: float


class Rung(NamedTuple):
    """The rank correlation of rewards at one step with those at the end.

    Attributes:
        step: the step, at which trials were stopped or paused.
        cut: the number of trials that were stopped there, or paused for ever.
        trials: the number of trials that were measured there and have an end in the table.
        correlation: of their rewards there and at the end; None if it is undefined.
    """

    step: int
    cut: int
    trials: int
    correlation: float | None


@dataclasses.dataclass(frozen=True)
class SimulatedTrial:
    """A trial of a simulated study.

    Attributes:
        trial: as it stands at the end; it has not ended only where the run ended early.
        row: the row of the table with its curve.
        compute: its cost; of a forked trial, since the fork.
    """

    trial: Trial
    row: int
    compute: float


@dataclasses.dataclass(frozen=True)
class Run:
    """A simulated study.

    Attributes:
        table: the recorded curves.
        trials: by number.
        progress: the completed trials that were better than all before.
        compute: the cost of all trials together, in the table's unit.
        time: the duration on the simulated clock, in the same unit.
    """

    table: CurveTable
    trials: Sequence[SimulatedTrial]
    progress: Sequence[Progress]
    compute: float
    time: float

    @property
    def best(self) -> float | None:
        """The best reward of a completed trial."""
        return self.progress[-1].reward if self.progress else None

    @property
    def regret(self) -> float:
        """The distance of the best from the table's best: 0 for that, 1 for the table's median."""
        best = self.table.median if self.best is None else self.best
        return (best - self.table.best) / (self.table.median - self.table.best)

    def compute_to(self, reward: float) -> float | None:
        """The compute until a completed trial was as good as a reward; None if none was."""
        score = self.table.reward.score
        reached = (each for each in self.progress if score(each.reward) >= score(reward))
        return next((each.compute for each in reached), None)

    def outcomes(self) -> dict[str, int]:
        """The number of trials by state."""
        return dict(collections.Counter(each.trial.status for each in self.trials))

    def rungs(self) -> list[Rung]:
        """The correlations at the steps at which trials were stopped or paused."""
        own = [each for each in self.trials if each.trial.lineage.forked_from is None]
        stopped = [each.trial for each in own if each.trial.status is Status.STOPPED]
        cut = collections.Counter(each.measurements[-1].step for each in stopped)
        steps = sorted({*cut, *(step for each in own for step in each.trial.record.pauses)})
        return [self._rung(step, cut[step], own) for step in steps]

    def _rung(self, step: int, cut: int, trials: Sequence[SimulatedTrial]) -> Rung:
        pairs = []
        for each in trials:
            end = self.table.rows[each.row].end
            measured = (m.reward for m in each.trial.measurements if m.step == step)
            if (reward := next(measured, None)) is not None and end is not None:
                pairs.append((reward, end))
        return Rung(step, cut, len(pairs), rank_correlation(pairs))
