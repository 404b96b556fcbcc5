"""Workload and runner of trials whose training is read from a table."""

import dataclasses
import functools
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from paxtune.config.search import Search
from paxtune.running.runner import Reports, Runner, Running
from paxtune.running.trial_spec import TrialSpec
from paxtune.schedulers.base import Unit
from paxtune.schedulers.resources import METRICS
from paxtune.search_space.space import Space
from paxtune.simulate import files
from paxtune.simulate.table import CurveTable, Goal, Row
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.workload import RunnerWorkload
from trainer.checkpoints.checkpoint import METADATA, newest_checkpoint, saved_checkpoints
from trainer.loop.report import Interrupted, Report
from trainer.runtime.directory import partial_id
from trainer.runtime.signals import SkipTrial, StopTrial
from trainer.symbolic.component import require_above_zero
from trainer.symbolic.errors import CheckpointGoneError, UserError

_SLICE_SECONDS = 0.2

TRACE = 'trace.json'
"""The file in a checkpoint that holds its state."""

_MAX_TO_KEEP = 2  # As many as `trainer` keeps by default.


@dataclasses.dataclass(frozen=True)
class State:
    """The state of a trial.

    Attributes:
        trace: the evaluations so far, as (trial, step). A fork begins with its parent's.
        metrics: the metrics of the last evaluation.
    """

    trace: tuple[tuple[int, int], ...] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def step(self) -> int:
        """The last step; 0 at the beginning."""
        return self.trace[-1][1] if self.trace else 0

    def after(self, trial: int, step: int, metrics: Mapping[str, float]) -> 'State':
        """The state after one more evaluation."""
        return State((*self.trace, (trial, step)), metrics)


def save(state: State, run_dir: Path) -> str:
    """Writes a checkpoint atomically, removes those before the last two, and returns its path."""
    directory = run_dir / 'checkpoints'
    partial = directory / f'.{partial_id()}.partial'
    partial.mkdir(parents=True)
    (partial / TRACE).write_text(json.dumps(dataclasses.asdict(state)))
    (partial / METADATA).write_text('{}\n')
    final = directory / str(state.step)
    partial.rename(final)
    for old in sorted(int(each.name) for each in saved_checkpoints(epath.Path(directory)))[
        :-_MAX_TO_KEEP
    ]:
        removed = directory / f'.{partial_id()}.removed'
        (directory / str(old)).rename(removed)  # From here on it does not count.
        shutil.rmtree(removed)
    return str(final)


def newest(run_dir: Path) -> tuple[State, str | None]:
    """The newest checkpoint of a run, and its path; an initial state without one."""
    found = newest_checkpoint(run_dir / 'checkpoints')
    return (State(), None) if found is None else (load(Path(found)), str(found))


def load(checkpoint: Path) -> State:
    """Reads a checkpoint."""
    content = json.loads((checkpoint / TRACE).read_text())
    return State(tuple((trial, step) for trial, step in content['trace']), content['metrics'])


def course_of(table: CurveTable, space: Space, trials: Sequence[Trial], trial: Trial) -> 'Course':
    """Finds the course of a trial. Trials take the rows next to their decisions, in their order.

    Raises:
        UserError: there are not enough rows.
    """
    answers, row = table.start(), 0
    points = list(zip(table.spec.elements, space.spec.elements, strict=True))
    for other in (each for each in trials if each.id <= trial.id):
        made = {own.id.path: other.by_id[point.id.path] for own, point in points}
        origin = other.lineage.forked_from
        try:
            row = answers.take(made, None if origin is None else origin[1])
        except LookupError:
            raise UserError(
                f'{table.source}: the table has not enough rows for trial {other.id}'
            ) from None
    return Course(trials, trial, table.rows[row])


class Course:
    """The row of a trial, with the resources of its parent if it was forked."""

    def __init__(self, trials: Sequence[Trial], trial: Trial, row: Row) -> None:
        self.row = row
        self._before: dict[Unit, float] = {}
        if trial.lineage.forked_from is None:
            return
        parent, step = trial.lineage.forked_from
        begun = next(each for each in trials if each.id == parent)
        (measured,) = [each for each in begun.measurements if each.step == step]
        past = sum(each <= step for each in row.resources['steps'])
        for unit, name in METRICS.items():
            if unit in row.resources and name in measured.metrics:
                own = row.resources[unit][past - 1] if past else 0.0
                self._before[unit] = measured.metrics[name] - own

    def resource(self, unit: Unit, index: int) -> float:
        """Returns the resource at a measurement of the row, by its index."""
        return self.row.resources[unit][index] + self._before.get(unit, 0.0)

    def took(self, unit: Unit, index: int) -> float:
        """Returns the resource from the measurement before to this one, or to the divergence."""
        used = self.row.resources[unit]
        return used[index] - (used[index - 1] if index else 0.0)

    def metrics(self, index: int) -> dict[str, float]:
        """Returns the metrics there: `reward`, if there is one, and the used resources."""
        reward = self.row.measurements[index].reward
        found = {} if reward is None else {'reward': reward}
        known = ((unit, name) for unit, name in METRICS.items() if unit in self.row.resources)
        return found | {name: self.resource(unit, index) for unit, name in known}


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
        decisions: of the table, by name.
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
        """Reads the trials of a file; raises as `paxtune.simulate.files.read`."""
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
