"""Rows of trials: columns, filter, order. Pure functions."""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from paxtune.reports.tables import Row, cell
from paxtune.study.frames import reward_columns, trial_row
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from trainer.symbolic.errors import UserError, nearest

_Item = TypeVar('_Item')

PAGE = 25
"""Rows of a page."""

_TERM = re.compile(r'(?P<name>[^\s"=<>!]+)(?P<sign><=|>=|!=|=|<|>)(?P<value>"[^"]*"|\S*)|(\S+)')
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    '<': operator.lt, '>': operator.gt, '<=': operator.le, '>=': operator.ge,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Term:
    """A condition of a filter.

    Attributes:
        column: the key of the column; '' for any.
        sign: one of = != < > <= >=, or 'has' for a part of the text.
    """

    column: str
    sign: str
    value: str

    def holds(self, row: Row) -> bool:
        """Returns True if a row fulfils the condition."""
        if not self.column:
            return any(self.value.lower() in cell(each).lower() for each in row.values())
        found = row.get(self.column)
        if self.sign in _ORDERS:
            own, other = _number(found), _number(self.value)
            return own is not None and other is not None and _ORDERS[self.sign](own, other)
        is_equal = cell(found).lower() == self.value.lower()
        if (number := _number(self.value)) is not None and _number(found) is not None:
            is_equal = is_equal or number == _number(found)
        return is_equal != (self.sign == '!=')


def columns_of(study: StudyView, trials: Iterable[Trial]) -> dict[str, str]:
    """Maps the keys of columns to their names for people, those of metrics last."""
    rewards = reward_columns(study.rewards)
    names = {name: name for name in ('trial', 'state', *rewards)}
    names |= {f'decisions.{path}': short for path, short in study.space.short_names.items()}
    rest = ('seconds', 'attempt', 'worker', 'origin', 'created', 'reason', 'note')
    metrics = dict.fromkeys(name for trial in trials for name in trial.metrics)
    names |= {name: name for name in rest}
    return names | {f'metrics.{name}': name for name in sorted(metrics)}


def rows_of(study: StudyView, trials: Sequence[Trial], notes: Mapping[int, str]) -> list[Row]:
    """Makes the row of each trial, by the keys of `columns_of`."""
    rewards = reward_columns(study.rewards)
    return [
        trial_row(trial, rewards)
        | {'worker': trial.record.holder or None, 'note': notes.get(trial.id)}
        for trial in trials
    ]


def parse_filter(text: str, columns: Mapping[str, str]) -> list[Term]:
    """Parses conditions, separated by spaces; all of them must hold.

    Args:
        text: such as `state=completed rate<0.01 "some text"`.
        columns: names for people by key, each of which a condition may have.

    Raises:
        UserError: there is no such column.

    Example:
        >>> parse_filter('rate<=0.1 nan', {'decisions.rate': 'rate'})
        [Term(column='decisions.rate', sign='<=', value='0.1'), Term(column='', sign='has', ...)]
    """
    terms = []
    for found in _TERM.finditer(text):
        if found['name'] is None:
            terms.append(Term('', 'has', found[0].strip('"')))
            continue
        column = _column(found['name'], columns)
        value = found['value'].strip('"')
        if found['sign'] in _ORDERS and _number(value) is None:
            raise UserError(f'{found[0]}: expected a number after {found["sign"]}')
        terms.append(Term(column, found['sign'], value))
    return terms


def _column(name: str, columns: Mapping[str, str]) -> str:
    for key, own in columns.items():
        if name in (key, own, key.partition('.')[2]):
            return key
    hint = nearest(name, columns.values()) or f'The columns are {", ".join(columns.values())}.'
    raise UserError(f'there is no column {name}. {hint}')


def filtered(rows: Iterable[Row], terms: Sequence[Term]) -> list[Row]:
    """Returns the rows that fulfil all conditions."""
    return [row for row in rows if all(term.holds(row) for term in terms)]


def ordered(rows: Iterable[Row], column: str, descending: bool) -> list[Row]:
    """Returns the rows by a column: numbers before texts, rows without a value last.

    Example:
        >>> ordered([{'x': None}, {'x': 'a'}, {'x': 2}, {'x': 1.5}], 'x', False)
        [{'x': 1.5}, {'x': 2}, {'x': 'a'}, {'x': None}]
    """
    pairs = [(row, row.get(column)) for row in rows]
    there = [(row, value) for row, value in pairs if value is not None]
    there.sort(key=lambda pair: _key(pair[1]), reverse=descending)
    return [row for row, _ in there] + [row for row, value in pairs if value is None]


def _key(value: Any) -> tuple[int, float, str]:
    number = _number(value)
    return (1, 0.0, cell(value)) if number is None else (0, number, '')


def page_of(rows: Sequence[_Item], number: int) -> tuple[list[_Item], int, int]:
    """Returns the rows of a page, its 0-based number within what there is, and their count."""
    count = max(1, math.ceil(len(rows) / PAGE))
    number = min(max(0, number), count - 1)
    return list(rows[number * PAGE : (number + 1) * PAGE]), number, count


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None
