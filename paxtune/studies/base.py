import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from paxtune.config import other_names
from paxtune.reports.tables import FORMATS
from paxtune.service import study_location
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.study.study import Study

Args: TypeAlias = argparse.Namespace
Run: TypeAlias = Callable[[Args], None]

EXP_OF_LIST = '-'
"""Value of --exp of a command on all studies: the client of a service needs some name."""


Flag: TypeAlias = tuple[str, dict[str, Any]]
"""A flag, or a positional argument, of a command: `argparse` takes its settings."""


def flag(name: str, **settings: Any) -> Flag:
    """Makes a flag; `settings` as of `add_argument`."""
    return name, settings


@dataclasses.dataclass(frozen=True)
class Command:
    """A command on studies.

    Attributes:
        run: raises UserError for bad input.
        help: begins with a verb, in lower case.
        is_view: prints a document, which --format renders; other commands have --json only.
        is_on_all: works on a directory of studies in place of one study.
    """

    name: str
    run: Run
    help: str
    flags: tuple[Flag, ...]
    is_view: bool
    is_on_all: bool

    def add_to(self, commands: Any, is_in_service: bool) -> None:
        """Adds the parser of the command to the sub-parsers of `argparse`.

        Args:
            is_in_service: a service keeps the study, so that no directory is given.
        """
        parser = commands.add_parser(
            self.name,
            help=self.help,
            description=f'{self.help[0].upper()}{self.help[1:]}.',
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.set_defaults(run=self.run, parser=parser)
        if self.is_on_all:
            parser.add_argument(
                'dir', nargs='?', default='runs', metavar='ROOT', help='default: runs'
            )
            parser.set_defaults(exp=EXP_OF_LIST)
        else:
            # With a service, argparse would read DIR as the next positional argument.
            if not is_in_service:
                parser.add_argument('dir', metavar='DIR', help='--job_log_dir of a search')
            parser.add_argument(
                '--exp', metavar='NAME', help='experiment, needed if it uses your own classes'
            )
        study_location.add_flags(parser, 'service that stores the study, in place of DIR')
        group = parser.add_mutually_exclusive_group()
        if self.is_view:
            group.add_argument('--format', choices=FORMATS, default='table')
        group.add_argument(
            '--json',
            dest='format',
            action='store_const',
            const='json',
            default='table',
            help='short for --format=json' if self.is_view else 'print the result as JSON',
        )
        for name, settings in self.flags:
            parser.add_argument(name, **settings)
        known = [*(name for name, _ in self.flags), '--exp', *['--format'] * self.is_view]
        parser.other_names = other_names.of_command(known if is_in_service else ['DIR', *known])


COMMANDS: list[Command] = []


def register(
    name: str, help: str, *flags: Flag, is_view: bool = False, is_on_all: bool = False
) -> Callable[[Run], Run]:
    """Adds the decorated function to `COMMANDS`; arguments as of `Command`."""

    def decorate(run: Run) -> Run:
        COMMANDS.append(Command(name, run, help, flags, is_view, is_on_all))
        return run

    return decorate


@contextlib.contextmanager
def opened(args: Args, can_write: bool = False) -> 'Iterator[Study]':
    """Opens the study; imports the module of --exp before."""
    if args.exp:
        from trainer.symbolic import registry
        from trainer.symbolic.component import Component

        # The import of its module registers the classes of the experiment.
        registry.find(args.exp, Component)
    with args.where.open(can_write) as study:
        yield study


@contextlib.contextmanager
def locked(args: Args, is_shared: bool = False) -> 'Iterator[Study]':
    """Opens the study to write, and locks it against searches; shares the lock if `is_shared`."""
    with args.where.locked(is_shared), opened(args, can_write=True) as study:
        yield study


@contextlib.contextmanager
def writing(out: str) -> Iterator[None]:
    """Raises UserError if the file of --out cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f'--out={out}: cannot be written: {error.strerror}') from error
