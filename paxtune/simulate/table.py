"""Recorded learning curves: the measurements of trials, evaluation by evaluation."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pyglove as pg

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers.base import Unit
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from paxtune.simulate.nearest_row import Box, Floats, Unused, is_logarithmic
from trainer.symbolic.errors import UserError

Goal: TypeAlias = Literal['minimize', 'maximize']
Value: TypeAlias = bool | int | float | str | None

UNITS: tuple[Unit, ...] = ('steps', 'tokens', 'flops', 'seconds')


@dataclasses.dataclass(frozen=True)
class Row:
    """One recorded trial, trained to its end.

    Attributes:
        decisions: by name.
        measurements: by step, with their rewards, if any.
        resources: the resources used up to each of them, by unit; a diverged trial has one value
            more, for the point where it diverged.
        end: the final reward; None if it diverged before the next evaluation, and is infeasible.
    """

    decisions: Mapping[str, Value]
    measurements: Sequence[Measurement]
    resources: Mapping[Unit, Sequence[float]]
    end: float | None

    @property
    def steps(self) -> float:
        """The number of steps to its end, or until it diverges."""
        return self.resources['steps'][-1]


class CurveTable:
    """Recorded trials of one search space, which a simulated study replays.

    The space has the columns that differ between rows. Numbers become ranges, on a logarithmic
    scale if they are positive and span more than two decades; others become choices. A suggestion
    gets the nearest row that the run has not used yet. Distances are measured in the box of the
    ranges. Different categories are as far apart as the ends of a range, and a missing number
    counts as the middle.

    Attributes:
        rows: the trials.
        goal: 'minimize' if small rewards are good.
        metric: the name of the reward.
        left_out: the number of trials in the file that were stopped early.
        reward: the objective of studies on this table.
        space: the search space.
        spec: the decision points of the space.
        units: the units that were measured in all rows.
        unit: of compute and time: seconds if they were measured, else steps.

    Example:
        >>> def row(rate: float, loss: float) -> Row:
        ...     return Row({'rate': rate}, [Measurement(1, {}, (loss,))], {'steps': [1.0]}, loss)
        >>> table = CurveTable([row(1e-4, 3.0), row(1e-2, 1.0)], 'minimize', 'loss')
        >>> table.spec.elements[0].id.path, table.best, table.start().take({'rate': 2e-2})
        ('rate', 1.0, 1)
    """

    def __init__(
        self, rows: Sequence[Row], goal: Goal, metric: str, source: str = '', left_out: int = 0
    ) -> None:
        """Makes a table; `source` names its file in messages.

        Raises:
            UserError: fewer than two trials have an end, or nothing differs between them.
        """
        if sum(row.end is not None for row in rows) < 2:
            others = f'; {left_out} were not, and are left out' if left_out else ''
            raise UserError(
                f'{source}: expected at least two trials that were trained to their ends{others}'
            )
        self.rows, self.goal, self.metric = rows, goal, metric
        self.source, self.left_out = source, left_out
        self.reward = MetricReward(goal, 'reward')
        self.units = [unit for unit in UNITS if all(unit in row.resources for row in rows)]
        self.unit: Literal['seconds', 'steps'] = 'seconds' if 'seconds' in self.units else 'steps'
        self._columns = _columns(rows)
        if not self._columns:
            raise UserError(f'{source}: the decisions of all trials are the same')
        self.space = Space(pg.Dict(self.decisions()))
        self.spec = self.space.spec
        # A name with a dot in it stands in brackets in an id.
        self._ids = [point.id.path for point in self.spec.elements]
        self._points = np.concatenate([each.points for each in self._columns], axis=1)

    def decisions(self) -> dict[str, Any]:
        """The decisions of its space, by name."""
        return {column.name: column.decision() for column in self._columns}

    @functools.cached_property
    def scores(self) -> list[float]:
        """The scores of the final rewards; more is better."""
        return [self.reward.score(row.end) for row in self.rows if row.end is not None]

    @property
    def best(self) -> float:
        """The best final reward."""
        return self.reward.score(max(self.scores))

    @property
    def median(self) -> float:
        """The median of the final rewards."""
        return self.reward.score(float(np.median(self.scores)))

    def start(self) -> 'Answers':
        """Starts a run, with all rows unused."""
        return Answers(self, Unused(self._points))

    def point(self, decisions: Decisions) -> Floats:
        """The position of decisions in the box of the rows."""
        made = zip(self._columns, self._ids, strict=True)
        return np.concatenate([column.point(decisions[id_]) for column, id_ in made])


class Answers:
    """Assigns rows to the suggestions of one run, each row once."""

    def __init__(self, table: CurveTable, unused: Unused) -> None:
        self._table, self._unused = table, unused

    @property
    def left(self) -> int:
        """The number of unused rows."""
        return self._unused.left

    def take(self, decisions: Decisions, after: int | None = None) -> int:
        """Takes the nearest unused row, and returns its number.

        Args:
            decisions: of the table's space.
            after: only rows that were trained beyond this step.

        Raises:
            LookupError: all of them are used.
        """
        rows = self._table.rows
        among = None if after is None else np.array([row.steps > after for row in rows])
        return self._unused.take(self._table.point(decisions), among)


class _Range:
    def __init__(self, name: str, numbers: Floats) -> None:
        """Makes a column of numbers that are not all equal; missing ones are NaN."""
        self.name = name
        self._low, self._high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
        self._is_log = is_logarithmic(self._low, self._high)
        self._box = Box([self._low], [self._high], [self._is_log])
        shares = self._box.shares(numbers[:, None])
        self.points = np.where(np.isnan(shares), 0.5, shares)

    def decision(self) -> Any:
        return pg.floatv(self._low, self._high, 'log' if self._is_log else 'linear')

    def point(self, value: int | float) -> Floats:
        return self._box.shares(np.array([value], float))


class _Category:
    def __init__(self, name: str, values: Sequence[Value]) -> None:
        self.name = name
        keys = [(type(each).__name__, each) for each in values]
        known = sorted(set(keys), key=repr)
        self._values = [value for _, value in known]
        # Squared, the distance of two of them is 1.
        self._corners = np.eye(len(known)) / math.sqrt(2)
        self.points = self._corners[[known.index(key) for key in keys]]

    def decision(self) -> Any:
        return pg.oneof(self._values)

    def point(self, value: int | float) -> Floats:
        return np.asarray(self._corners[int(value)])


def _columns(rows: Sequence[Row]) -> list[_Range | _Category]:
    found: list[_Range | _Category] = []
    for name in dict.fromkeys(name for row in rows for name in row.decisions):
        values = [row.decisions.get(name) for row in rows]
        if len({(type(each), each) for each in values}) == 1:
            continue
        given = [each for each in values if each is not None]
        if any(type(each) not in (int, float) for each in given):
            found.append(_Category(name, values))
        elif len(set(given)) > 1:
            numbers = np.array([math.nan if each is None else each for each in values], float)
            found.append(_Range(name, numbers))
    return found
