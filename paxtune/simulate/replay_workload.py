"""Workload and runner of trials whose training is read from a table."""

import functools
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paxtune.config.search import Search
from paxtune.running.runner import Reports, Runner, RunnerWorkload, Running
from paxtune.running.trial_spec import TrialSpec
from paxtune.schedulers.base import Unit
from paxtune.search_space.space import Space
from paxtune.simulate import files
from paxtune.simulate.checkpoints import State, newest, save
from paxtune.simulate.course import Course, course_of
from paxtune.simulate.table import CurveTable, Goal
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from trainer.loop.report import Interrupted, Report
from trainer.runtime.signals import SkipTrial, StopTrial
from trainer.symbolic.component import require_above_zero
from trainer.symbolic.errors import CheckpointGoneError

_SLICE_SECONDS = 0.2


class RecordedTrials(RunnerWorkload):
    """Replays recorded trials in a study that is real in all other respects.

    Each trial gets the unused row that is next to its decisions; a forked one, a row that was
    trained beyond the fork. That follows from the numbers and the decisions of the trials, so it is
    the same in every process, and after a kill.

    Attributes:
        search: the configuration of the search.
        table: the absolute path of the file.
        metric: the array in an .npz file that is the reward.
        goal: 'minimize' if small numbers of it are good.
        decisions: those of the table, by name.
        speedup: how much faster than the recorded training; a unit of time is a second, or a step
            if the table has no seconds. None trains in no time.
    """

    table: str
    decisions: dict[str, Any]
    metric: str | None = None
    goal: Goal | None = None
    speedup: float | None = None

    def check(self) -> None:
        super().check()
        require_above_zero(self, 'speedup')

    @classmethod
    def of(
        cls,
        path: str,
        search: Search,
        metric: str | None = None,
        goal: Goal | None = None,
        speedup: float | None = None,
    ) -> 'RecordedTrials':
        """Reads those of a file: see `paxtune.simulate.files.read`, also for what is raised."""
        where = str(Path(path).absolute())
        return cls(search, where, _table(where, metric, goal).decisions(), metric, goal, speedup)

    def runner(self) -> Runner:
        return TableRunner(self.curves, self.speedup)

    def data(self) -> dict[str, str]:
        return {'table': hashlib.sha256(Path(self.table).read_bytes()).hexdigest()}

    def max_resource(
        self, space: Space, trials: Sequence[Trial], trial: Trial, unit: Unit
    ) -> float | None:
        if unit == 'seconds':
            return None
        course = course_of(self.curves, space, trials, trial)
        if course.row.end is None and (unit == 'steps' or trial.lineage.forked_from is None):
            # A divergence is not known beforehand.
            rows = self.curves.rows
            return max(row.resources[unit][-1] for row in rows if row.end is not None)
        return course.resource(unit, -1)

    @property
    def curves(self) -> CurveTable:
        """The table; raises UserError if it cannot be read."""
        return _table(self.table, self.metric, self.goal)


@functools.lru_cache(maxsize=8)
def _table(path: str, metric: str | None, goal: Goal | None) -> CurveTable:
    return files.read(path, metric, goal)


class TableRunner(Runner):
    """Does all that training does except the computation: it waits, saves, measures, and resumes.

    Each evaluation is saved before it is reported. A trial resumes from the newest checkpoint, with
    the measurement of that step. A trial that was paused or forked never begins from scratch.
    """

    def __init__(self, table: CurveTable, speedup: float | None) -> None:
        """Makes a runner that is `speedup` times as fast as was recorded; None never waits."""
        self._table, self._speedup = table, speedup

    def prepare(self, study: Study, trial: RunningTrial) -> Running:
        return functools.partial(self._run, study, trial)

    def _run(
        self, study: Study, trial: RunningTrial, should_interrupt: Callable[[], bool]
    ) -> Reports:
        course = course_of(self._table, study.space, study.trials, trial.view)
        folder = Path(TrialSpec.of(study, trial.view).begin())
        state, checkpoint = newest(folder)
        _require(trial.view, state, folder)
        measurements, end = course.row.measurements, course.row.end
        resumed_from, count = state.step, len(measurements)
        past = sum(each.step <= resumed_from for each in measurements)
        if resumed_from:
            is_last = past == count and end is not None
            yield Report(resumed_from, state.metrics, checkpoint, resumed_from, is_last)
            if not is_last and should_interrupt():
                raise Interrupted(resumed_from)
        for index in range(past, count):
            self._wait(course, index, state, should_interrupt)
            step = measurements[index].step
            state = state.after(trial.id, step, course.metrics(index))
            checkpoint = save(state, folder)
            is_last = index + 1 == count and end is not None
            yield Report(step, state.metrics, checkpoint, resumed_from, is_last)
            if not is_last and should_interrupt():
                raise Interrupted(step)
        if end is None:
            self._wait(course, count, state, should_interrupt)
            raise SkipTrial('it diverged, as was recorded')
        if end != state.metrics.get('reward'):
            raise StopTrial('the reward of its end is the recorded one', reward=end)

    def _wait(
        self, course: Course, index: int, state: State, should_interrupt: Callable[[], bool]
    ) -> None:
        """Waits as long as the training to an evaluation takes; an interruption loses it."""
        if self._speedup is None:
            return
        seconds = course.took(self._table.unit, index) / self._speedup
        # The trainer asks after every step: more often would count as progress.
        most = max(1, int(course.took('steps', index)))
        count = min(most, math.ceil(seconds / _SLICE_SECONDS))
        for left in reversed(range(count)):
            time.sleep(seconds / count)
            if left and should_interrupt():
                raise Interrupted(state.step)


def _require(trial: Trial, state: State, folder: Path) -> None:
    """Checks that a paused or forked trial has a checkpoint to resume from."""
    begun = trial.continues_from
    if begun is not None and state.step < begun[1]:
        raise CheckpointGoneError(
            f'{folder}: trial {trial.id} resumes from step {begun[1]} of trial {begun[0]}, and '
            f'the newest checkpoint is of step {state.step}'
        )
