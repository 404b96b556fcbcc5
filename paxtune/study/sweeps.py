"""Parameter sweeps: trials for all combinations of some values, or for rows of a table."""

from collections.abc import Sequence
from typing import Any

import pyglove as pg

from paxtune.algorithms import Grid
from paxtune.config.search import Search
from paxtune.experiment import Tunable, as_tunable
from paxtune.search_space.decisions import decision_points, size
from paxtune.search_space.labels import parameter_path as path_of
from paxtune.search_space.shared_decisions import reference
from paxtune.search_space.space import Space
from trainer.experiment import Experiment
from trainer.symbolic import fields, overrides
from trainer.symbolic.concrete import open_decisions
from trainer.symbolic.derived import SHARED, derived
from trainer.symbolic.errors import UserError

ROWS = 'sweep'
"""The name, among the shared values, of the decision between the rows of a sweep."""


def parameter_sweep(
    experiment: Experiment,
    paths: Sequence[str] | None = None,
    rows: Sequence[Sequence[Any]] | None = None,
    **search: Any,
) -> Tunable:
    """A copy of an experiment that tries all of a finite space, or the rows of a table.

    Args:
        experiment: any experiment; it is not changed. The search of a `Tunable` is kept, except
            for algorithm, scheduler and number of trials. Other experiments have no objective, and
            all of their metrics are stored.
        paths: the header of a table: a field for each column. Without it, every combination of the
            decisions in the experiment is tried.
        rows: the table: a value for each path.
        search: fields of `Search` with other values, such as `objective`.

    Raises:
        UserError: the space is empty or infinite, or the table does not fit the experiment.

    Example:
        >>> from search_spaces.lm import C4Small
        >>> table = [[0.1, 4], [0.01, 8]]
        >>> sweep = parameter_sweep(
        ...     C4Small(), ['task.learner.learning_rate', 'task.model.stack.repeats'], table
        ... )
        >>> Space(sweep).readable({'shared.sweep': 1})
        {'shared.sweep': '[0.01, 8]'}
    """
    if (paths is None) != (rows is None):
        raise UserError('parameter_sweep: give both the paths and the rows of a table, or neither')
    tunable = _searched(experiment, search)
    if paths is None or rows is None:
        _require_finite(Space(tunable))
        return tunable
    return _tabulated(tunable, [str(path) for path in paths], rows)


def _searched(experiment: Experiment, search: dict[str, Any]) -> Tunable:
    """The experiment with a search over all of its space."""
    everything = Grid(points_per_range=None)
    changes = {'algorithm': everything, 'scheduler': None, 'budget.trials': None} | search
    tunable = as_tunable(experiment, Search(None))
    tunable.search.rebind(changes, raise_on_no_change=False)
    return tunable


def _require_finite(space: Space) -> None:
    for point in decision_points(space.spec):
        if isinstance(point, pg.geno.Float) and size(point) is None:
            raise UserError(
                f'parameter_sweep: {path_of(point.id.path)} is continuous, from '
                f'{point.min_value} to {point.max_value}: list the values to try, pg.oneof([…])'
            )


def _tabulated(tunable: Tunable, paths: list[str], rows: Sequence[Sequence[Any]]) -> Tunable:
    """The experiment with one decision between rows; the fields of the header are derived."""
    types = [_column_type(tunable, path) for path in paths]
    _validate_paths(paths)
    table = _table(paths, types, rows)
    if ROWS in tunable.shared:
        raise UserError(f'parameter_sweep: {SHARED}.{ROWS} is there already: one table is enough')
    places: dict[str, Any] = {
        path: derived(f'{reference(ROWS)}[{column}]') for column, path in enumerate(paths)
    }
    swept = tunable.clone(deep=True, override=places)
    if extra := open_decisions(swept):
        raise UserError(
            f'parameter_sweep: found extra decisions, at {", ".join(extra)}. Give them values, or '
            'a column in the table.'
        )
    swept.shared.rebind({ROWS: pg.oneof(table)})
    return swept


def _column_type(tunable: Tunable, path: str) -> Any:
    where = f'parameter_sweep: {path}'
    if path == 'search' or path.startswith('search.'):
        raise UserError(f'{where}: the search itself cannot be searched')
    return overrides.type_at(tunable, path, where)


def _validate_paths(paths: list[str]) -> None:
    if not paths:
        raise UserError('parameter_sweep: name at least one path')
    keys = [pg.KeyPath.parse(path).keys for path in paths]
    for i, path in enumerate(paths):
        for j, other in enumerate(paths):
            if i != j and keys[j][: len(keys[i])] == keys[i]:
                raise UserError(f'parameter_sweep: {path} and {other} are, in part, the same')


def _table(paths: list[str], types: list[Any], rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The rows, each value as its field holds it."""
    if not rows:
        raise UserError('parameter_sweep: give at least one row')
    table = []
    for number, row in enumerate(rows, 1):
        where = f'parameter_sweep: row {number}'
        if isinstance(row, str) or not isinstance(row, Sequence) or len(row) != len(paths):
            raise UserError(f'{where}: expected {len(paths)} values, one for each path: {row!r}')
        named = zip(paths, types, row, strict=True)
        fitted = [
            fields.fit(spec, pg.clone(value, deep=True), f'{where}: {path}')
            for path, spec, value in named
        ]
        if not all(map(pg.is_deterministic, fitted)):
            raise UserError(f'{where}: a row has values, and no decisions: {row!r}')
        table.append(fitted)
    return table
