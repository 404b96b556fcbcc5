"""The settings of a view, in the query of its address: a view is a link. Pure functions."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl, urlencode

from trainer.symbolic.errors import UserError

Selected: TypeAlias = int | Literal['best']

BEST: Literal['best'] = 'best'
"""Stands for the best trial among the selected ones."""

MAX_SELECTED = 500
"""Trials that can be selected."""

_MAX_LENGTH = 50_000  # Characters.
_MAX_FIELDS = 2000


@dataclasses.dataclass(frozen=True)
class Link:
    """The query of an address.

    Attributes:
        values: of each setting, in order.
    """

    values: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, search: str | None) -> 'Link':
        """Reads a query; raises UserError for text that is none.

        Example:
            >>> Link.parse('?sort=-loss&trials=3,best').values
            {'sort': ['-loss'], 'trials': ['3,best']}
        """
        text = (search or '').removeprefix('?')
        try:
            if len(text) > _MAX_LENGTH:
                raise ValueError
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
        except ValueError as error:
            raise UserError('the address is too long: select fewer trials') from error
        values: dict[str, list[str]] = {}
        for name, value in pairs:
            values.setdefault(name, []).append(value)
        return cls(values)

    def one(self, name: str) -> str | None:
        """Returns the value of a setting; None without one."""
        return next(iter(self.values.get(name, ())), None)

    def json(self, name: str) -> Any:
        """Returns a value that is JSON; None without one. Raises UserError for other text."""
        text = self.one(name)
        try:
            return None if text is None else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f'{name}={text}: expected JSON, as the table writes it') from error

    @property
    def selected(self) -> list[Selected]:
        """The selected trials: numbers, and `BEST`. Raises UserError for other text."""
        return selected(self.one('trials') or '')

    def with_selected(self, trials: Sequence[Selected]) -> str:
        """Returns the query with other selected trials; '' for an empty one.

        Example:
            >>> Link.parse('?reward=loss&trials=7').with_selected([3, 'best'])
            '?reward=loss&trials=3,best'
        """
        values = {name: each for name, each in self.values.items() if name != 'trials'}
        if trials:
            values['trials'] = [','.join(map(str, trials))]
        text = urlencode(values, doseq=True, safe=',')
        return f'?{text}' if text else ''


def selected(text: str) -> list[Selected]:
    """Reads numbers of trials, and `BEST`, between commas or spaces.

    Raises:
        UserError: the text has something else, or too many.

    Example:
        >>> selected('3, 7 best 3')
        [3, 7, 'best']
    """
    parts = dict.fromkeys(text.replace(',', ' ').split())
    if len(parts) > MAX_SELECTED:
        raise UserError(f'at most {MAX_SELECTED} trials can be selected, not {len(parts)}')
    found: list[Selected] = []
    for part in parts:
        if part != BEST and not (part.isascii() and part.isdigit() and len(part) < 10):
            raise UserError(f'{part}: expected numbers of trials, or {BEST}, such as 3, 7, {BEST}')
        found.append(BEST if part == BEST else int(part))
    return found
