"""The runner of trials whose training is read from a table."""

import math
import time
from collections.abc import Callable, Generator
from pathlib import Path

from paxtune.running.runner import Runner
from paxtune.running.runners import TrialSpec
from paxtune.simulation.checkpoints import State, newest, save
from paxtune.simulation.course import Course, course_of
from paxtune.simulation.table import CurveTable
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from trainer.loop.report import Interrupted, Report
from trainer.runtime.signals import SkipTrial, StopTrial
from trainer.symbolic.errors import CheckpointGoneError

_SLICE_SECONDS = 0.2


class TableRunner(Runner):
    """Does all that training does except the computation: it waits, saves, measures, and resumes.

    Each evaluation is saved before it is reported. A trial resumes from the newest checkpoint, with
    the measurement of that step. A trial that was paused or forked never begins from scratch.
    """

    def __init__(self, table: CurveTable, speedup: float | None) -> None:
        """Makes a runner that is `speedup` times as fast as was recorded; None never waits."""
        self._table, self._speedup = table, speedup

    def run(
        self, study: Study, trial: RunningTrial, should_interrupt: Callable[[], bool]
    ) -> Generator[Report, None, None]:
        course = course_of(self._table, study.space, study.trials, trial)
        folder = Path(TrialSpec.of(study, trial).begin())
        state, checkpoint = newest(folder)
        _require(trial, state, folder)
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
