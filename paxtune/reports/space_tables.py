import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paxtune.reports.tables import Table, print_line, print_table

if TYPE_CHECKING:
    import pyglove as pg
    from rich.console import Console

    from paxtune.search_space.decisions import DecisionPoint, Decisions
    from paxtune.search_space.space import Space


@dataclasses.dataclass(frozen=True)
class Row:
    """A decision, in words.

    Attributes:
        path: the place in the concrete experiment.
        condition: the decisions that it depends on; empty where it is always made.
    """

    path: str
    legal: str
    scale: str
    condition: str


def rows(space: 'Space') -> list[Row]:
    """Lists all decisions, an owner before those that depend on it."""
    return list(_rows(space, space.spec, ''))


def _rows(space: 'Space', spec: 'pg.DNASpec', condition: str) -> Iterator[Row]:
    import pyglove as pg

    from paxtune.search_space.decisions import slots
    from paxtune.search_space.labels import parameter_path

    for point in spec.elements:
        scale = (point.scale or 'linear') if isinstance(point, pg.geno.Float) else ''
        yield Row(parameter_path(point.id.path), _legal(space, point), scale, condition)
        if isinstance(point, pg.geno.Float):
            continue
        for place in slots(point):
            labels = space.candidate_names(place)
            for label, candidate in zip(labels, place.candidates, strict=True):
                chosen = f'{parameter_path(place.id.path)} = {label}'
                both = f'{condition} and {chosen}' if condition else chosen
                yield from _rows(space, candidate, both)


def _legal(space: 'Space', point: 'DecisionPoint') -> str:
    import pyglove as pg

    if isinstance(point, pg.geno.Float):
        return space.legal_values(point)
    names = ', '.join(map(str, space.candidate_names(point.subchoice(0))))
    if point.num_choices == 1:
        return f'one of {names}'
    differ = ', all different' if point.distinct else ''
    order = ', in this order' if point.sorted else ''
    return f'{point.num_choices} of {names}{differ}{order}'


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


def show(space: 'Space', console: 'Console', drawn: Sequence['Decisions']) -> None:
    """Prints the decisions of a space, its size, and some samples."""
    made = map(dataclasses.astuple, rows(space))
    headings = ['decision', 'legal', 'scale', 'only if']
    print_table(console, Table.of('Decisions', headings, made))
    if following := followers(space):
        table = Table.of('Derived values', ['field', 'follows'], following.items())
        print_table(console, table)
    size = 'countless' if space.size is None else f'{space.size:,}'
    print_line(console, f'Size: {size} different experiments')
    if drawn:
        readable = [space.readable(decisions) for decisions in drawn]
        paths = [path for path in space.paths if any(path in decisions for decisions in readable)]
        headings = ['decision', *map(str, range(1, len(drawn) + 1))]
        lines = [[path, *(each.get(path) for each in readable)] for path in paths]
        print_table(console, Table.of('Samples', headings, lines))
