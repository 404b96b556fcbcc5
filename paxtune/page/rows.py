"""Rows of trials for the table: columns, filter, order, texts. Pure functions."""

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paxtune.analysis.trial_values import thinned
from paxtune.reports.tables import cell
from paxtune.study import columns, trial_table
from paxtune.study.columns import Column, number, ordered
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from trainer.symbolic.errors import UserError

NEWEST = ('-trial',)
"""The order of a new table: keys of columns, with `-` before descending ones."""

_FIRST = ('trial', 'state')
_LAST = ('seconds', 'attempt', 'worker', 'origin', 'created', 'reason', 'note')
_HIDDEN = {'attempt', 'worker', 'origin', 'created'}
_MAX_SHOWN = {'decisions': 30, 'metrics': 8, 'attributes': 4}
_SAMPLE = 500  # Trials by whose values a column is formatted.
_MAX_DECIMALS = 6
_TERM = re.compile(r'(?P<name>[^\s"=<>!~]+)(?P<sign><=|>=|!=|=|<|>|~)(?P<value>"[^"]*"|\S*)|(\S+)')
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    '<': operator.lt, '>': operator.gt, '<=': operator.le, '>=': operator.ge,
}  # fmt: skip
_SIGNS = {
    'contains': '~', 'equals': '=', 'notEqual': '!=', 'lessThan': '<', 'greaterThan': '>',
    'lessThanOrEqual': '<=', 'greaterThanOrEqual': '>=', 'blank': '=', 'notBlank': '!=',
}  # fmt: skip
"""Signs by the filters of the grid."""

TEXT_FILTERS = ['contains', 'equals', 'notEqual', 'blank', 'notBlank']
NUMBER_FILTERS = [name for name in _SIGNS if name != 'contains'] + ['inRange']


@dataclasses.dataclass(frozen=True)
class Term:
    """A condition of a filter.

    Attributes:
        column: the key of the column; '' for any.
        sign: one of = != < > <= >=, or ~ for a part of the text.
    """

    column: str
    sign: str
    value: str

    def holds(self, found: Any) -> bool:
        """Returns True for a value that fulfils the condition."""
        if self.sign == '~':
            return self.value.lower() in cell(found).lower()
        if self.sign in _ORDERS:
            own, other = number(found), number(self.value)
            return own is not None and other is not None and _ORDERS[self.sign](own, other)
        is_equal = cell(found).lower() == self.value.lower()
        if not is_equal and (other := number(self.value)) is not None:
            is_equal = number(found) == other
        return is_equal != (self.sign == '!=')


def examples(trials: Sequence[Trial]) -> list[Trial]:
    """Returns a few trials that together have all names of metrics and attributes."""
    return [*dict(zip(trial_table.column(trials, _names), trials, strict=True)).values()]


def _names(trial: Trial) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return _kept(tuple(trial.metrics)), _kept(tuple(trial.attributes))


@functools.lru_cache(1024)
def _kept(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns one object for equal names: most trials have the same ones."""
    return names


def columns_of(study: StudyView, trials: Sequence[Trial], notes: Mapping[int, str]) -> list[Column]:
    """Lists the columns of the table of trials, metrics last."""
    worker = Column('worker', 'worker', lambda trial: trial.record.holder or None)
    note = Column('note', 'note', lambda trial: notes.get(trial.id))
    found = columns.columns_of(examples(trials), study.space, study.rewards, [worker, note])
    by_key = {each.key: each for each in found}
    return [
        *(by_key[key] for key in _FIRST),
        *(each for each in found if each.group in ('rewards', 'decisions')),
        *(by_key[key] for key in _LAST),
        *(each for each in found if each.group in ('metrics', 'attributes')),
    ]


def shown_first(known: Sequence[Column], rewards: Sequence[str]) -> list[str]:
    """Lists the keys of the columns that a new table shows.

    Args:
        known: all columns.
        rewards: names of rewards, whose metrics would be shown twice.
    """
    left = dict(_MAX_SHOWN)
    found = []
    for each in known:
        is_twice = each.group == 'metrics' and each.key.removeprefix('metrics.') in rewards
        if each.key in _HIDDEN or is_twice:
            continue
        if each.group in left:
            left[each.group] -= 1
            if left[each.group] < 0:
                continue
        found.append(each.key)
    return found


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
        [Term(column='decisions.rate', sign='<=', value='0.1'), Term(column='', sign='~', ...)]
    """
    terms = []
    for found in _TERM.finditer(text):
        if found['name'] is None:
            terms.append(Term('', '~', found[0].strip('"')))
            continue
        column = columns.named(known, found['name'])
        terms.append(_term(column.key, found['sign'], found['value'].strip('"'), found[0]))
    return terms


def terms_of(model: Any, known: Sequence[Column]) -> list[Term]:
    """Reads the filters of the columns of the grid: all of them must hold.

    Args:
        model: as the grid makes it; None for no filter.
        known: all columns.

    Raises:
        UserError: no grid makes such filters, or there is no such column.

    Example:
        >>> rate = Column('rate', 'rate', lambda trial: 0.01)
        >>> terms_of({'rate': {'type': 'inRange', 'filter': 1, 'filterTo': 2}}, [rate])
        [Term(column='rate', sign='>=', value='1'), Term(column='rate', sign='<=', value='2')]
    """
    if not isinstance(model or {}, dict):
        raise UserError('the filters of the columns: expected those that the table makes')
    terms = []
    for key, each in (model or {}).items():
        column = columns.named(known, key)
        given = each if isinstance(each, dict) else {}
        kind, value = given.get('type'), given.get('filter', '')
        signs = {'>=': value, '<=': given.get('filterTo', '')} if kind == 'inRange' else {}
        if isinstance(kind, str) and kind in _SIGNS:
            signs = {_SIGNS[kind]: '' if kind in ('blank', 'notBlank') else value}
        values = list(signs.values())
        if not signs or not all(isinstance(value, str | int | float) for value in values):
            raise UserError(
                f'the filter of the column {column.header}: the table makes no such one'
            )
        terms += [
            _term(column.key, sign, f'{value}', f'{column.header}{sign}{value}')
            for sign, value in signs.items()
        ]
    return terms


def _term(column: str, sign: str, value: str, given: str) -> Term:
    if sign in _ORDERS and number(value) is None:
        raise UserError(f'{given}: expected a number after {sign}')
    return Term(column, sign, value)


def found_in(
    trials: Sequence[Trial], known: Sequence[Column], terms: Sequence[Term]
) -> Sequence[Trial]:
    """Returns the trials that fulfil all conditions."""
    for term in terms:
        read = [each for each in known if term.column in ('', each.key)]
        trials = [trial for trial in trials if any(term.holds(each.value(trial)) for each in read)]
    return trials


def sorted_by(
    trials: Sequence[Trial], known: Sequence[Column], order: Sequence[str]
) -> Sequence[Trial]:
    """Sorts trials by the values of columns.

    Args:
        trials: by number.
        known: all columns.
        order: keys of columns, the most important one first, with `-` before descending ones.

    Raises:
        UserError: there is no such column.
    """
    for each in reversed(order):
        column = columns.named(known, each.removeprefix('-'))
        if column.key == 'trial' and len(order) == 1:  # The trials are in that order.
            return trials[::-1] if each.startswith('-') else trials
        trials = ordered(trials, column.value, descending=each.startswith('-'))
    return trials


def order_of(model: Any) -> tuple[str, ...]:
    """Reads the order of the grid; raises UserError for one that no grid makes.

    Example:
        >>> order_of([{'colId': 'loss', 'sort': 'desc'}, {'colId': 'rate', 'sort': 'asc'}])
        ('-loss', 'rate')
    """
    found = []
    for each in model if isinstance(model, list) else [None]:
        key, way = (each.get('colId'), each.get('sort')) if isinstance(each, dict) else ('', '')
        if not isinstance(key, str) or way not in ('asc', 'desc'):
            raise UserError('the order of the table: expected one that the table makes')
        found.append(f'-{key}' if way == 'desc' else key)
    return tuple(found) or NEWEST


def text_of(column: Column, trials: Sequence[Trial]) -> tuple[bool, Callable[[Any], str]]:
    """Returns whether a column has numbers, and a function that makes texts of its values.

    All its numbers have as many digits after the point, or an exponent: they align.
    """
    sample = [trials[index] for index in thinned(len(trials), _SAMPLE)] if trials else []
    values = [value for value in map(column.value, sample) if value is not None]
    numbers = [value for value in values if _is_number(value)]
    if not numbers or len(numbers) < len(values):
        return False, cell
    spec = number_format(numbers)
    return True, lambda value: format(value, spec) if _is_number(value) else cell(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number_format(numbers: Sequence[float]) -> str:
    """Returns the format of the numbers of a column: all but the smallest have four digits.

    Example:
        >>> number_format([0.4, 3.25]), number_format([1e-4, 0.1]), number_format([1, 5])
        ('.4f', '.3e', ',.0f')
    """
    sizes = sorted(abs(each) for each in numbers if each and math.isfinite(each))
    if all(float(each).is_integer() for each in sizes):
        return ',.0f' if not sizes or sizes[-1] < 1e12 else '.3e'
    decimals = max(0, 3 - math.floor(math.log10(sizes[len(sizes) // 20])))
    return '.3e' if sizes[-1] >= 1e6 or decimals > _MAX_DECIMALS else f'.{decimals}f'


def compared(
    known: Sequence[Column], trials: Sequence[Trial]
) -> tuple[list[dict[str, str]], list[str]]:
    """Returns rows of the values that differ between trials, and names of values that do not.

    A row has its name at '', and the text of each trial at its number.
    """
    different, same = [], []
    for column in known:
        text = text_of(column, trials)[1]
        texts = {str(trial.id): text(column.value(trial)) for trial in trials}
        values = {cell(column.value(trial)) for trial in trials}
        if len(values) > 1:
            different.append({'': column.header, **texts})
        elif values != {''}:
            same.append(f'{column.header}={values.pop()}')
    return different, same
