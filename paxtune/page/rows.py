"""Rows of trials: columns, filter, order. Pure functions."""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from paxtune.reports.tables import Row, cell
from paxtune.study import columns
from paxtune.study.columns import Column, number
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from trainer.symbolic.errors import UserError

_Item = TypeVar('_Item')

PAGE = 25
"""Rows of a page."""

_FIRST = ('trial', 'state')
_LAST = ('seconds', 'attempt', 'worker', 'origin', 'created', 'reason', 'note')
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
            own, other = number(found), number(self.value)
            return own is not None and other is not None and _ORDERS[self.sign](own, other)
        is_equal = cell(found).lower() == self.value.lower()
        if (other := number(self.value)) is not None:
            is_equal = is_equal or number(found) == other
        return is_equal != (self.sign == '!=')


def columns_of(study: StudyView, trials: Sequence[Trial], notes: Mapping[int, str]) -> list[Column]:
    """Lists the columns of the table of trials, metrics last."""
    worker = Column('worker', 'worker', lambda trial: trial.record.holder or None)
    note = Column('note', 'note', lambda trial: notes.get(trial.id))
    found = columns.columns_of(trials, study.space, study.rewards, [worker, note])
    by_key = {each.key: each for each in found}
    shared = [each for each in found if each.group in ('rewards', 'decisions')]
    metrics = [each for each in found if each.group == 'metrics']
    return [
        *(by_key[key] for key in _FIRST),
        *shared,
        *(by_key[key] for key in _LAST),
        *metrics,
    ]


def parse_filter(text: str, known: Sequence[Column]) -> list[Term]:
    """Parses conditions, separated by spaces; all of them must hold.

    Args:
        text: such as `state=completed rate<0.01 "some text"`.
        known: the columns that a condition may have.

    Raises:
        UserError: there is no such column.

    Example:
        >>> rate = Column('decisions.rate', 'rate', lambda trial: 0.01)
        >>> parse_filter('rate<=0.1 nan', [rate])
        [Term(column='decisions.rate', sign='<=', value='0.1'), Term(column='', sign='has', ...)]
    """
    terms = []
    for found in _TERM.finditer(text):
        if found['name'] is None:
            terms.append(Term('', 'has', found[0].strip('"')))
            continue
        column = columns.named(known, found['name'])
        value = found['value'].strip('"')
        if found['sign'] in _ORDERS and number(value) is None:
            raise UserError(f'{found[0]}: expected a number after {found["sign"]}')
        terms.append(Term(column.key, found['sign'], value))
    return terms


def filtered(rows: Iterable[Row], terms: Sequence[Term]) -> list[Row]:
    """Returns the rows that fulfil all conditions."""
    return [row for row in rows if all(term.holds(row) for term in terms)]


def page_of(rows: Sequence[_Item], index: int) -> tuple[list[_Item], int, int]:
    """Returns the rows of a page, the 0-based number of an existing page, and their count."""
    count = max(1, math.ceil(len(rows) / PAGE))
    index = min(max(0, index), count - 1)
    return list(rows[index * PAGE : (index + 1) * PAGE]), index, count
