import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paxtune.config.search import Search
from paxtune.running.runner import Runner, RunnerWorkload
from paxtune.schedulers.base import Unit
from paxtune.search_space.space import Space
from paxtune.simulation import files
from paxtune.simulation.course import course_of
from paxtune.simulation.runner import TableRunner
from paxtune.simulation.table import CurveTable, Goal
from paxtune.study.trial import Trial
from trainer.symbolic.component import require_above_zero


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
        """Reads those of a file: see `paxtune.simulation.files.read`, also for what is raised."""
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
            # That it will diverge is not known beforehand.
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
