import dataclasses
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paxtune.reports.tables import Table, print_line, print_table
from paxtune.search_space.decision_rows import rows
from trainer.command import counted

if TYPE_CHECKING:
    from rich.console import Console

    from paxtune.search_space.decisions import Decisions
    from paxtune.search_space.space import Space


def followers(space: 'Space') -> dict[str, str]:
    """Maps the path of each derived value to its expression."""
    from paxtune.search_space.shared_decisions import readable_path
    from trainer.symbolic.derived import derived_values

    found = derived_values(space.value, inside_decisions=True)
    return {readable_path(place): place.expression for place in found}


def samples(space: 'Space', number: int, seed: int) -> list['Decisions']:
    """Draws random decisions; lists all, where the space has at most `number`."""
    from paxtune.algorithms.encoding.enumeration import enumerate_decisions
    from paxtune.algorithms.encoding.sampling import draw

    if space.size is not None and space.size <= number:
        return list(enumerate_decisions(space.spec))
    rng = random.Random(seed)
    return [draw(space.spec, rng) for _ in range(number)]


def _size(space: 'Space') -> str:
    if space.size is None:
        return 'infinite (some decisions are continuous)'
    return counted(space.size, 'different experiment')


def show(space: 'Space', console: 'Console', drawn: Sequence['Decisions']) -> None:
    """Prints the decisions of a space, its size, and some samples."""
    made = map(dataclasses.astuple, rows(space))
    headings = ['decision', 'legal', 'scale', 'only if']
    print_table(console, Table.of('Decisions', headings, made))
    if following := followers(space):
        table = Table.of('Derived values', ['field', 'follows'], following.items())
        print_table(console, table)
    print_line(console, f'Size: {_size(space)}')
    if drawn:
        readable = [space.readable(decisions) for decisions in drawn]
        paths = [path for path in space.paths if any(path in decisions for decisions in readable)]
        headings = ['decision', *map(str, range(1, len(drawn) + 1))]
        lines = [[path, *(each.get(path) for each in readable)] for path in paths]
        print_table(console, Table.of('Samples', headings, lines))
