"""Mutations as data: patches that each remove one protection, and what has to notice."""

import dataclasses
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]

PACKAGES = ('paxtune', 'trainer', 'search_spaces')


class StaleError(Exception):
    """A patch does not apply any more. The message says why."""


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A patch of one file, with the check that fails where it is applied.

    Attributes:
        name: the lost protection.
        file: the file in the repository.
        old: the text that is replaced. The file has it once.
        new: the text in its place.
        test: the node of a fast test, or of a function with parameters; '' for the simulation.
        simulation: flags of `python -m tests.simulation`; '' for a test.
    """

    name: str
    file: str
    old: str
    new: str
    test: str = ''
    simulation: str = ''

    @property
    def check(self) -> str:
        """The check, for people."""
        return self.test.partition('::')[2] or f'simulation {self.simulation}'

    def applied(self, text: str) -> str:
        """Returns the mutated text of the file; raises StaleError where the patch does not fit."""
        count = text.count(self.old)
        if count != 1 or self.old == self.new:
            raise StaleError(f'{self.file} has the text of the patch {count} times: {self.old!r}')
        mutated = text.replace(self.old, self.new)
        try:
            compile(mutated, self.file, 'exec')
        except SyntaxError as error:
            raise StaleError(f'{self.file} cannot be compiled with the patch: {error}') from error
        return mutated


def read(folder: Path) -> list[Mutation]:
    """Reads the mutations of a folder, in the order of its files."""
    found = [
        Mutation(**each)
        for file in sorted(folder.glob('*.toml'))
        for each in tomllib.loads(file.read_text())['mutation']
    ]
    for each in found:
        if bool(each.test) == bool(each.simulation):
            raise ValueError(f'{each.name}: expected either a test or the flags of a simulation')
    return found
