from collections.abc import Sequence

from paxtune.schedulers.base import Unit
from paxtune.schedulers.resources import METRICS
from paxtune.search_space.space import Space
from paxtune.simulate.table import CurveTable, Row
from paxtune.study.trial import Trial
from trainer.symbolic.errors import UserError


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
