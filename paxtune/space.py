"""Prints the search space of an experiment: its decisions, some samples, and what they cost.

    python -m paxtune.space --exp=lm.StdlibTunable

Nothing is trained, and no data is read. Unless --measured asks for it, nothing is compiled. (The
class `Space` is in `paxtune/search_space/space.py`.)
"""

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paxtune.reports.space_costs import costs, show_costs
from paxtune.reports.tables import print_line, print_table
from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import pyglove as pg
    from rich.console import Console

    from paxtune.search_space.decisions import DecisionPoint, Decisions
    from paxtune.search_space.space import Space

_WIDTH = 160


@dataclasses.dataclass(frozen=True)
class Row:
    """One decision, in words.

    Attributes:
        path: where it stands in the concrete experiment.
        legal: what may be decided.
        scale: of a range.
        condition: the decisions that it depends on; empty where it is always made.
    """

    path: str
    legal: str
    scale: str
    condition: str


def main(argv: Sequence[str] | None) -> int:
    """Runs the command.

    Raises:
        UserError: bad input.
    """
    flags = command.parser(__doc__)
    command.add_experiment_flags(flags)
    command.add_tune_flag(flags)
    flags.add_argument('--samples', type=int, default=3, help='random experiments to show')
    flags.add_argument('--num_costed', type=int, default=16, help='random experiments to cost')
    flags.add_argument(
        '--measured',
        action='store_true',
        help='also tell what memory of a device they need, and how long a step takes; each of '
        'those to cost is compiled for that, and runs a few steps',
    )
    flags.add_argument('--seed', type=int, default=0, help='what is random is drawn from this')
    args = flags.parse_args(argv)
    for name in ('samples', 'num_costed'):
        if getattr(args, name) < 0:
            raise UserError(f'--{name} must not be negative: {getattr(args, name)}')

    from rich.console import Console

    from paxtune.search_space.space import Space
    from trainer.experiment import Experiment
    from trainer.symbolic import overrides, registry

    experiment = registry.find(args.exp, Experiment)
    if args.smoke:
        experiment = overrides.smoke(experiment)
    space = Space(overrides.tune(overrides.override(experiment, args.set), args.tune))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    show(space, console, samples(space, args.samples, args.seed))
    if args.num_costed:
        decided = samples(space, args.num_costed, args.seed)
        show_costs(costs(space, decided, args.measured), console)
    return 0


def rows(space: 'Space') -> list[Row]:
    """All decisions that there may be to make, owners before what they open."""
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
    shown = ', '.join(map(str, space.candidate_names(point.subchoice(0))))
    if point.num_choices == 1:
        return f'one of {shown}'
    differ = ', all different' if point.distinct else ''
    order = ', in this order' if point.sorted else ''
    return f'{point.num_choices} of {shown}{differ}{order}'


def followers(space: 'Space') -> dict[str, str]:
    """The derived values by their path: what they are worked out from."""
    from paxtune.search_space.shared_decisions import readable_path
    from trainer.symbolic.derived import derived_values

    found = derived_values(space.value, inside_decisions=True)
    return {readable_path(place): place.expression for place in found}


def samples(space: 'Space', number: int, seed: int) -> list['Decisions']:
    """Random decisions; all that there are, where these are no more than `number`."""
    from paxtune.algorithms.encoding.sampling import draw
    from paxtune.search_space.decisions import enumerate_decisions

    if space.size is not None and space.size <= number:
        return list(enumerate_decisions(space.spec))
    rng = random.Random(seed)
    return [draw(space.spec, rng) for _ in range(number)]


def show(space: 'Space', console: 'Console', shown: Sequence['Decisions']) -> None:
    """Prints the decisions of a space, its size, and some samples."""
    print_table(
        console,
        'Decisions',
        ['decision', 'legal', 'scale', 'only if'],
        [[row.path, row.legal, row.scale, row.condition] for row in rows(space)],
    )
    if following := followers(space):
        print_table(
            console,
            'Derived values',
            ['field', 'follows'],
            [[path, expression] for path, expression in following.items()],
        )
    size = 'countless' if space.size is None else f'{space.size:,}'
    print_line(console, f'Size: {size} different experiments')
    if shown:
        readable = [space.readable(decisions) for decisions in shown]
        paths = [path for path in space.paths if any(path in decisions for decisions in readable)]
        print_table(
            console,
            'Samples',
            ['decision', *map(str, range(1, len(shown) + 1))],
            [
                [path, *(_value(decisions.get(path, '')) for decisions in readable)]
                for path in paths
            ],
        )


def _value(value: Any) -> str:
    return f'{value:.4g}' if isinstance(value, float) else str(value)


if __name__ == '__main__':
    command.run_command(main)
