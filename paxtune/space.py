"""Prints the search space of an experiment: its decisions, some samples, and their costs.

    python -m paxtune.space --exp=lm.StdlibTunable

The command trains nothing, and reads no data. It compiles a model only with --measured.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paxtune.reports.space_costs import costs, show_costs
from paxtune.reports.space_tables import samples, show
from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import argparse

_WIDTH = 160


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    args = parser().parse_args(argv)
    for name in ('samples', 'num_costed'):
        if getattr(args, name) < 0:
            raise UserError(f'--{name} must not be negative: {getattr(args, name)}')

    from rich.console import Console

    from paxtune.search_space.space import Space
    from trainer.symbolic import overrides

    space = Space(overrides.tune(command.experiment_of(args), args.tune))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    show(space, console, samples(space, args.samples, args.seed))
    if args.num_costed:
        decided = samples(space, args.num_costed, args.seed)
        show_costs(costs(space, decided, args.measured), console)
    return 0


def parser() -> 'argparse.ArgumentParser':
    """Makes the parser of the command's flags."""
    flags = command.parser(__doc__)
    command.add_experiment_flags(flags)
    command.add_tune_flag(flags)
    flags.add_argument('--samples', type=int, default=3, help='random samples to show')
    flags.add_argument('--num_costed', type=int, default=16, help='random samples to cost')
    flags.add_argument(
        '--measured',
        action='store_true',
        help='also measure device memory and step time: compiles each sample and runs a few steps',
    )
    flags.add_argument('--seed', type=int, default=0, help='seed of the random samples')
    return flags


if __name__ == '__main__':
    command.run_command(main)
