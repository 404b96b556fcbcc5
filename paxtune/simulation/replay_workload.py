"""A table of recorded curves as what a study searches: real studies, whose training is read."""

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from paxtune.config.search import Search
from paxtune.running.runners import Runnable, Runner
from paxtune.schedulers.base import Unit
from paxtune.search_space.space import Space
from paxtune.simulation import files
from paxtune.simulation.course import course_of
from paxtune.simulation.runner import TableRunner
from paxtune.simulation.table import CurveTable
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
            # Nobody knows beforehand that it will diverge.
            rows = self.curves.rows
            return max(row.resources[unit][-1] for row in rows if row.end is not None)
        return course.spent(unit, -1)

    @property
    def curves(self) -> CurveTable:
        """The table.

        Raises:
            UserError: it cannot be read.
        """
        return _table(self.table, self.metric, self.goal)


@functools.lru_cache(maxsize=8)
def _table(
    path: str, metric: str | None, goal: Literal['minimize', 'maximize'] | None
) -> CurveTable:
    return files.read(path, metric, goal)
