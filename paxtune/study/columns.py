"""The columns of trials, from which page, reports, commands, files and data frames are made."""

import dataclasses
import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from paxtune.objectives.rewards import Reward
from paxtune.search_space.labels import candidate_names
from paxtune.search_space.space import Space
from paxtune.study.trial import Trial
from trainer.symbolic import extras
from trainer.symbolic.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas

_Item = TypeVar('_Item')

_FACTS: dict[str, Callable[[Trial], Any]] = {
    'stopped': lambda trial: trial.stop_reason is not None,
    'reason': lambda trial: trial.reason,
    'attempt': lambda trial: trial.attempt,
    'origin': lambda trial: trial.lineage.origin,
    'parent': lambda trial: trial.lineage.parent,
    'replicate': lambda trial: trial.lineage.replicate,
    'replicate_of': lambda trial: trial.lineage.replicate_of_here,
    'created': lambda trial: trial.created,
    'completed': lambda trial: trial.completed,
    'seconds': lambda trial: trial.seconds,
}
GROUPS: dict[str, Callable[[Trial], Mapping[str, Any]]] = {
    'decisions': lambda trial: trial.decisions,
    'metrics': lambda trial: trial.metrics,
    'attributes': lambda trial: trial.attributes,
}
"""Columns with a prefix: a trial has some of each group."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table of trials.

    Attributes:
        key: the name in JSON, CSV and data frames; in a group it begins with `<group>.`.
        header: the name for people, which no other column has.
        read: returns the value of a trial; raises KeyError if the trial has none.
        group: one of `GROUPS`, 'rewards', or '' for a fact about the trial.
        is_maximized: the largest value is the best.
    """

    key: str
    header: str
    read: Callable[[Trial], Any]
    group: str = ''
    is_maximized: bool = False

    def value(self, trial: Trial) -> Any:
        """Returns the value of a trial; None if the trial has none."""
        try:
            return self.read(trial)
        except KeyError:
            return None


def columns_of(
    trials: Iterable[Trial], space: Space, rewards: Sequence[Reward], extra: Sequence[Column] = ()
) -> list[Column]:
    """Lists the columns of trials: state, rewards, decisions, metrics, attributes, facts.

    A decision or metric has its short name as a header, unless an earlier column has that name.

    Args:
        extra: columns at the end.
    """
    trials = list(trials)
    keyed = zip(rewards, reward_columns(rewards), reward_headings(rewards), strict=True)
    first = [
        Column('trial', 'trial', lambda trial: trial.id),
        Column('state', 'state', lambda trial: trial.status),
        *(_reward(index, *each) for index, each in enumerate(keyed)),
    ]
    facts = [Column(name, name, read) for name, read in _FACTS.items()]
    taken = {each.key for each in (*first, *facts, *extra)} | {'reward', *GROUPS}
    found = []
    for group, read in GROUPS.items():
        names = space.short_names
        if group != 'decisions':
            names = {name: name for name in sorted({n for trial in trials for n in read(trial)})}
        for name, short in names.items():
            key = f'{group}.{name}'
            header = key if short in taken else short
            taken.add(header)
            found.append(Column(key, header, _member(read, name), group))
    return [*first, *found, *facts, *extra]


def _reward(index: int, reward: Reward, key: str, header: str) -> Column:
    def read(trial: Trial) -> float | None:
        return trial.rewards[index] if index < len(trial.rewards) else None

    return Column(key, header, read, 'rewards', reward.goal == 'maximize')


def _member(read: Callable[[Trial], Mapping[str, Any]], name: str) -> Callable[[Trial], Any]:
    return lambda trial: read(trial)[name]


def reward_columns(rewards: Sequence[Reward]) -> list[str]:
    """Lists the keys of rewards: their labels, numbered where they are equal."""
    return [str(name) for name in candidate_names([reward.label for reward in rewards])]


def reward_headings(rewards: Sequence[Reward]) -> list[str]:
    """Lists the headers of rewards: a single reward that is no plain metric is `reward`."""
    columns = reward_columns(rewards)
    return ['reward'] if len(columns) == 1 and '(' in columns[0] else columns


def decision_names(space: Space) -> dict[str, str]:
    """Maps the keys of decisions to their short names."""
    return {f'decisions.{path}': name for path, name in space.short_names.items()}


def row_of(trial: Trial, columns: Iterable[Column]) -> dict[str, Any]:
    """Maps the keys of columns to the values of a trial; missing values have no entry."""
    row = {}
    for column in columns:
        try:
            row[column.key] = column.read(trial)
        except KeyError:
            continue
    return row


def named(columns: Iterable[Column], name: str) -> Column:
    """Finds a column by its key, its header, or its name within a group.

    Raises:
        UserError: there is no such column.
    """
    columns = list(columns)
    for column in columns:
        if name in (column.key, column.header, column.key.partition('.')[2]):
            return column
    headers = [column.header for column in columns]
    hint = nearest(name, headers) or f'The columns are {", ".join(headers)}.'
    raise UserError(f'there is no column {name}. {hint}')


def ordered(
    items: Iterable[_Item], value: Callable[[_Item], Any], descending: bool = False
) -> list[_Item]:
    """Sorts items by a value: numbers before texts, items without a value last.

    Example:
        >>> ordered([None, 'a', 2, 1.5], lambda each: each)
        [1.5, 2, 'a', None]
    """
    pairs = [(item, value(item)) for item in items]
    there = [(item, own) for item, own in pairs if own is not None]
    # Most columns have numbers alone, which need no key.
    has_numbers = {type(own) for _, own in there} <= {int, float}
    key = (lambda own: own) if has_numbers else _key
    there.sort(key=lambda pair: key(pair[1]), reverse=descending)
    return [item for item, _ in there] + [item for item, own in pairs if own is None]


def _key(value: Any) -> tuple[int, float, str]:
    known = number(value)
    return (1, 0.0, str(value)) if known is None else (0, known, '')


def number(value: Any) -> float | None:
    """Converts a value, or the text of a number, for comparisons; None for any other text."""
    if isinstance(value, datetime.datetime):
        return value.timestamp()
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def trials_frame(
    trials: Sequence[Trial], space: Space, rewards: Sequence[Reward]
) -> 'pandas.DataFrame':
    """Makes a table with a row for each trial; see `StudyView.to_pandas`."""
    # Imported here: it takes half a second, and most programs ask for no tables.
    with extras.needed('pandas', 'to_pandas'):
        import pandas

    columns = columns_of(trials, space, rewards)
    rows = [row_of(trial, columns) for trial in trials]
    return pandas.DataFrame(rows, columns=[each.key for each in columns]).set_index('trial')
