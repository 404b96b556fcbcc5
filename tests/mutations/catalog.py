"""Mutations as data: patches that each remove one protection, and what has to notice."""

import dataclasses
import tomllib
import zlib
from collections.abc import Sequence
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
        rows: the rows of the tables on parity with Pax that it breaks, as `pytest.mark.pax` names
            them; the test is one of theirs.
    """

    name: str
    file: str
    old: str
    new: str
    test: str = ''
    simulation: str = ''
    rows: Sequence[str] = ()

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
        if self.file.endswith('.py'):
            try:
                compile(mutated, self.file, 'exec')
            except SyntaxError as error:
                raise StaleError(f'{self.file} cannot be compiled as patched: {error}') from error
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


def tenth(mutations: Sequence[Mutation], commit: str) -> list[Mutation]:
    """Chooses about a tenth of the mutations by the hash of a commit.

    A mutation belongs to one of ten parts, so that each is tried before long.

    Example:
        >>> mutations = [Mutation(f'the {n}th', 'f.py', 'x', 'y') for n in range(1000)]
        >>> [len(tenth(mutations, commit)) > 80 for commit in ('0', 'f3', '1cbc7760')]
        [True, True, True]
    """
    part = int(commit, 16) % 10
    return [each for each in mutations if zlib.crc32(each.name.encode()) % 10 == part]
