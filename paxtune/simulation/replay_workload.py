"""A table of recorded curves as what a study searches: real studies, whose training is read."""

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paxtune.config.search import Search
from paxtune.schedulers.resources import METRICS
from paxtune.simulation import files
from paxtune.simulation.table import CurveTable, Row
from paxtune.study.workload import Runnable
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.running.runners import Runner
    from paxtune.schedulers.base import Unit
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial


class RecordedTrials(Runnable):
    """Trials that go as those of a table went, in a study that is a real one in all else.

    A trial is answered by the row next to its decisions that no trial before it was answered by, of
    a forked one by a row that was trained beyond the fork. That follows from the numbers and the
    decisions of the trials, so it is the same in every process, and after a kill.

    Attributes:
        search: how the decisions are searched.
        table: the file, by its absolute path.
        metric: the array in an .npz file that is the reward.
        goal: whether its small or large numbers are good.
        decisions: those of the table, by name.
        speedup: training takes this part of the time that it took; a unit of time is a second, or
            a step where the table has no seconds. None for no time at all.
    """

    table: str
    decisions: dict[str, Any]
    metric: str | None = None
    goal: Literal['minimize', 'maximize'] | None = None
    speedup: float | None = None

    def check(self) -> None:
        super().check()
        if self.speedup is not None and not self.speedup > 0:
            raise ValueError(f'speedup must be above 0: {self.speedup}')

    @classmethod
    def of(
        cls,
        path: str,
        search: Search,
        metric: str | None = None,
        goal: Literal['minimize', 'maximize'] | None = None,
        speedup: float | None = None,
    ) -> 'RecordedTrials':
        """Those of a file: see `paxtune.simulation.files.read`.

        Raises:
            UserError: the file cannot be read.
        """
        where = str(Path(path).absolute())
        return cls(search, where, _table(where, metric, goal).decisions(), metric, goal, speedup)

    def runner(self) -> 'Runner':
        # Imported here: what runs trials imports the trainer.
        from paxtune.simulation.runner import TableRunner

        return TableRunner()

    def data(self) -> dict[str, str]:
        return {'table': hashlib.sha256(Path(self.table).read_bytes()).hexdigest()}

    def max_resource(self, study: 'Study', trial: 'Trial', unit: 'Unit') -> float | None:
        if unit == 'seconds':
            return None
        course = self.course(study, trial)
        if course.row.end is None and (unit == 'steps' or trial.forked_from is None):
            # Nobody knows beforehand that it will diverge.
            rows = self.curves.rows
            return max(row.resources[unit][-1] for row in rows if row.end is not None)
        return course.resource(unit, -1)

    @property
    def curves(self) -> CurveTable:
        """The table.

        Raises:
            UserError: it cannot be read.
        """
        return _table(self.table, self.metric, self.goal)

    def course(self, study: 'Study', trial: 'Trial') -> 'Course':
        """How a trial goes.

        Raises:
            UserError: there are not enough rows.
        """
        table = self.curves
        answers, row = table.start(), 0
        points = list(zip(table.spec.elements, study.space.spec.elements, strict=True))
        for other in (each for each in study.trials if each.id <= trial.id):
            made = {own.id.path: other.by_id[point.id.path] for own, point in points}
            after = None if other.forked_from is None else other.forked_from[1]
            try:
                row = answers.take(made, after)
            except LookupError:
                raise UserError(
                    f'{self.table}: the table has not enough rows for trial {other.id}'
                ) from None
        return Course(study, trial, table.rows[row])


class Course:
    """How a trial goes: as a row of a table, from where it was forked, if it was.

    Attributes:
        row: of the table.
    """

    def __init__(self, study: 'Study', trial: 'Trial', row: Row) -> None:
        self.row = row
        self._before: dict[Unit, float] = {}
        if trial.forked_from is None:
            return
        parent, step = trial.forked_from
        (measured,) = [each for each in study.trial(parent).measurements if each.step == step]
        past = sum(each <= step for each in row.resources['steps'])
        for unit, name in METRICS.items():
            if unit in row.resources and name in measured.metrics:
                own = row.resources[unit][past - 1] if past else 0.0
                self._before[unit] = measured.metrics[name] - own

    def resource(self, unit: 'Unit', index: int) -> float:
        """The resource of the trial at a measurement of its row, by its index."""
        return self.row.resources[unit][index] + self._before.get(unit, 0.0)

    def took(self, unit: 'Unit', index: int) -> float:
        """The resource from one measurement of its row to the next, or to where it diverged."""
        used = self.row.resources[unit]
        return used[index] - (used[index - 1] if index else 0.0)

    def metrics(self, index: int) -> dict[str, float]:
        """The metrics there: `reward`, where there is one, and the used resources."""
        reward = self.row.measurements[index].reward
        found = {} if reward is None else {'reward': reward}
        known = ((unit, name) for unit, name in METRICS.items() if unit in self.row.resources)
        return found | {name: self.resource(unit, index) for unit, name in known}


@functools.lru_cache(maxsize=8)
def _table(
    path: str, metric: str | None, goal: Literal['minimize', 'maximize'] | None
) -> CurveTable:
    return files.read(path, metric, goal)
