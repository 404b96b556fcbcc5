"""Trials of a study without the damaged ones, so that one trial never stops a study."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from absl import logging

from paxtune.study.record_checks import DamagedRecordError
from trainer.command import printable


class _Numbered(Protocol):
    @property
    def id(self) -> int: ...


_Stored = TypeVar('_Stored')
_Read = TypeVar('_Read', bound=_Numbered)


class SoundTrials:
    """Reads the trials of one study, and leaves damaged ones out, with one line for each."""

    def __init__(self, where: object, remedy: str = 'To remove it: studies delete.') -> None:
        """Reads nothing yet; `where` names the study, and `remedy` ends a line."""
        self._where, self._remedy = where, remedy
        self._reported: set[int] = set()

    def read(
        self, stored: Iterable[tuple[int, _Stored]], decode: Callable[[_Stored], _Read]
    ) -> list[_Read]:
        """Decodes stored trials, which have their numbers before them.

        Args:
            decode: raises DamagedRecordError for a trial that is left out.
        """
        found = []
        for number, each in stored:
            try:
                read = decode(each)
                if read.id != number:
                    raise DamagedRecordError(f'it has the record of trial {read.id}')
                found.append(read)
            except DamagedRecordError as error:
                self._report(number, error)
        return found

    def _report(self, number: int, error: DamagedRecordError) -> None:
        if number not in self._reported:
            self._reported.add(number)
            line = f'{self._where}: trial {number} is left out: {error}. {self._remedy}'
            logging.warning('%s', printable(line.replace('\n', ' ')))
