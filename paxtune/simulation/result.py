"""What came of a simulated study."""

import bisect
import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from paxtune.objectives.measurement import Measurement
from paxtune.schedulers.rung_report import rank_correlation
from paxtune.search_space.decisions import Decisions
from paxtune.simulation.table import CurveTable
from paxtune.study.record import Status


class Progress(NamedTuple):
    """When a completed trial was the best so far.

    Attributes:
        time: of the simulated clock.
        compute: what all trials together had cost by then.
        reward: of the trial.
    """

    time: float
    compute: float
    reward: float


class Rung(NamedTuple):
    """How well what trials had been measured at, at one step, told their ends.

    Attributes:
        step: where trials were stopped or paused.
        cut: how many were stopped there, or paused for ever.
        trials: how many were measured there whose ends are known: the table knows them all.
        correlation: the rank correlation of their rewards there and at the end; None where there is
            none.
    """

    step: int
    cut: int
    trials: int
    correlation: float | None


@dataclasses.dataclass(frozen=True)
class SimulatedTrial:
    """A trial of a simulated study.

    Attributes:
        id: its number.
        row: of the table, whose curve it had.
        decisions: as they were suggested.
        state: its state; one that has not ended only where the run ended early.
        reward: what it ended with, or was measured at last; None where it is infeasible.
        compute: what it has cost; of a forked trial, since the fork.
        pauses: the steps at which it was paused.
        forked_from: the trial and the step that it was forked from.
        replaces: the trial whose place it took then.
        reason: why it was stopped, paused or promoted last.
        measurements: by step.
    """

    id: int
    row: int
    decisions: Decisions
    state: Status
    reward: float | None
    compute: float
    pauses: tuple[int, ...]
    forked_from: tuple[int, int] | None
    replaces: int | None
    reason: str | None
    measurements: tuple[Measurement, ...]


@dataclasses.dataclass(frozen=True)
class Run:
    """A simulated study.

    Attributes:
        table: what it ran on.
        trials: by number.
        progress: each time that a completed trial was better than all before.
        compute: what all trials together have cost, in the table's unit.
        time: how long it took, by the simulated clock, in the same unit.
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
        """How far the best is from the best of the table: 0 for that, 1 for its median."""
        best = self.table.median if self.best is None else self.best
        return (best - self.table.best) / (self.table.median - self.table.best)

    def compute_to(self, reward: float) -> float | None:
        """What it had cost when a completed trial was first as good as this; None if none was."""
        score = self.table.reward.score
        found = (each for each in self.progress if score(each.reward) >= score(reward))
        first = next(found, None)
        return None if first is None else first.compute

    def outcomes(self) -> dict[str, int]:
        """How many trials ended how."""
        return dict(collections.Counter(each.state for each in self.trials))

    def rungs(self) -> list[Rung]:
        """How well the steps told the ends of trials at which some were stopped or paused."""
        own = [each for each in self.trials if each.forked_from is None and each.measurements]
        cut = collections.Counter(
            each.measurements[-1].step for each in own if each.state == 'stopped'
        )
        steps = sorted({*cut, *(step for each in own for step in each.pauses)})
        return [self._rung(step, cut[step], own) for step in steps]

    def _rung(self, step: int, cut: int, trials: Sequence[SimulatedTrial]) -> Rung:
        pairs = []
        for trial in trials:
            at = bisect.bisect_left(trial.measurements, step, key=lambda each: each.step)
            end = self.table.rows[trial.row].end
            if at < len(trial.measurements) and trial.measurements[at].step == step:
                reward = trial.measurements[at].reward
                if reward is not None and end is not None:
                    pairs.append((reward, end))
        rewards, ends = zip(*pairs, strict=True) if pairs else ((), ())
        return Rung(step, cut, len(pairs), rank_correlation(rewards, ends))
