"""Looks at studies, and changes them.

    python -m paxtune.studies list [ROOT]
    python -m paxtune.studies show|trials|best|diff|export DIR …
    python -m paxtune.studies add|import|retry|delete DIR …
    python -m paxtune.studies stop DIR [TRIAL …]

DIR is the --job_log_dir of a search. While a search works there, it can be looked at, and `stop`
works. Where an experiment is built of classes of your own, --exp names the experiment as the search
does, so that its module is imported. `… studies show --help` and so on tell more.
Exit codes: 0 done, 2 bad input.
"""

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from paxtune.printing import FORMATS
from trainer import command
from trainer.errors import UserError

if TYPE_CHECKING:
    from paxtune.study import Study

Args: TypeAlias = argparse.Namespace

# As `paxtune.protos.OUTCOMES`, which takes a second to import.
STATES = ('completed', 'stopped', 'infeasible', 'active', 'requested')


def main(argv: Sequence[str] | None) -> int:
    """Runs the command.

    Raises:
        UserError: bad input.
    """
    flags = _flags()
    args, rest = flags.parse_known_args(argv)
    # Python 3.11 ends a list of trials, which may be empty, where the first flag comes.
    if rest and hasattr(args, 'trials') and all(text.isdecimal() for text in rest):
        args.trials += map(int, rest)
    elif rest:
        flags.error(f'unrecognized arguments: {" ".join(rest)}')

    import google.protobuf.message
    import sqlalchemy

    from paxtune.database import DatabaseUnavailableError

    try:
        args.run(args)
    except (
        DatabaseUnavailableError,
        sqlalchemy.exc.DatabaseError,
        google.protobuf.message.DecodeError,
    ) as error:
        reason = str(getattr(error, 'orig', error))
        raise UserError(f'{args.dir}: the study cannot be read, or written: {reason}') from error
    return 0


def _flags() -> argparse.ArgumentParser:
    flags = command.parser(__doc__)
    commands = flags.add_subparsers(required=True, metavar='COMMAND')

    def add(
        name: str, run: Callable[[Args], None], what: str, is_view: bool = False
    ) -> argparse.ArgumentParser:
        parser = commands.add_parser(
            name,
            help=what,
            description=f'{what[0].upper()}{what[1:]}.',
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.set_defaults(run=run)
        if name == 'list':
            parser.add_argument('dir', nargs='?', default='runs', metavar='ROOT', help='runs')
        else:
            parser.add_argument('dir', metavar='DIR', help='the --job_log_dir of a search')
            parser.add_argument(
                '--exp', metavar='NAME', help='the experiment, where it has classes of your own'
            )
        if is_view:
            parser.add_argument('--format', choices=FORMATS, default='table')
        return parser

    add('list', _list, 'shows the studies in a directory and below', is_view=True)
    add('show', _show, 'shows what a study searches, how far it is, and its best', is_view=True)
    parser = add('trials', _trials, 'shows the trials of a study', is_view=True)
    parser.add_argument('--state', choices=STATES, help='only these')
    parser.add_argument(
        '--sort',
        metavar='COLUMN',
        help='sort by a decision, a metric, the reward (best first) or another column; '
        '--sort=-COLUMN the other way round',
    )
    parser.add_argument('--limit', type=_count, metavar='N', help='only the first of them')
    parser = add('best', _best, 'shows the best trials, or the Pareto front', is_view=True)
    parser.add_argument('--top', type=_count, metavar='N', help='how many; 1 by default')
    parser = add('diff', _diff, 'shows what differs between two trials', is_view=True)
    parser.add_argument('left', type=int, metavar='TRIAL')
    parser.add_argument('right', type=int, metavar='TRIAL')
    parser = add('export', _export, 'writes a whole study as JSON')
    parser.add_argument('--out', metavar='FILE', help='standard output by default')
    parser = add('import', _import, 'adds the ended trials that `export` wrote, where they fit')
    parser.add_argument('file', metavar='FILE')
    parser = add('add', _add, 'adds a trial, which will run before new suggestions')
    parser.add_argument(
        'decisions', nargs='+', metavar='PATH=VALUE', help='others are drawn at random'
    )
    parser.add_argument(
        '--warm_start', type=int, metavar='TRIAL', help='begin with the weights of this trial'
    )
    parser = add('stop', _stop, 'asks the search to stop trials, or to pause')
    parser.add_argument('trials', type=int, nargs='*', metavar='TRIAL')
    parser = add('retry', _retry, 'adds a trial that repeats another one')
    parser.add_argument('trial', type=int, metavar='TRIAL')
    parser = add('delete', _delete, 'deletes trials and their directories, or a whole study')
    parser.add_argument('trials', type=int, nargs='*', metavar='TRIAL')
    parser.add_argument('--yes', action='store_true', help='delete; else only say what would be')
    return flags


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'expected a number from 1 on, not {text}')
    return number


# --- Looking ---


def _list(args: Args) -> None:
    from paxtune.overview import listing
    from paxtune.printing import write

    write(listing(Path(args.dir)), args.format)


def _show(args: Args) -> None:
    from paxtune.printing import write
    from paxtune.study_tables import summary

    with _opened(args) as study:
        write(summary(study), args.format)


def _trials(args: Args) -> None:
    from paxtune.printing import write
    from paxtune.study_tables import trials_of

    with _opened(args) as study:
        write(trials_of(study, args.state, args.sort, args.limit), args.format)


def _best(args: Args) -> None:
    from paxtune.printing import write
    from paxtune.search import train_command
    from paxtune.study_tables import best_of, best_trials

    with _opened(args) as study:
        best = best_trials(study, args.top)
        # A study of a function has nothing to train.
        can_train = best and hasattr(study.value, 'parts')
        again = train_command(study, best[0], args.exp) if can_train else ''
        write(best_of(study, best, again), args.format)


def _diff(args: Args) -> None:
    from paxtune.printing import write
    from paxtune.study_tables import difference

    with _opened(args) as study:
        write(difference(study, args.left, args.right), args.format)


def _export(args: Args) -> None:
    from paxtune import exchange
    from paxtune.printing import say
    from trainer.directory import write_text

    with _opened(args) as study:
        text = json.dumps(exchange.export(study), indent=2, allow_nan=False)
    if args.out is None:
        say(text)
        return
    try:
        write_text(args.out, text + '\n')
    except OSError as error:
        raise UserError(f'--out={args.out}: cannot be written: {error.strerror}') from error


@contextlib.contextmanager
def _opened(args: Args, can_write: bool = False) -> 'Iterator[Study]':
    from paxtune.study import Study

    if args.exp:
        from trainer import registry
        from trainer.component import Component

        # Only its module makes the classes known that the experiment is built of.
        registry.find(args.exp, Component)
    with Study.load(args.dir, read_only=not can_write) as study:
        yield study


# --- Changing ---


def _import(args: Args) -> None:
    from paxtune.study_changes import import_file

    with _held(args) as study:
        print(import_file(study, args.file))


def _add(args: Args) -> None:
    from paxtune.study_changes import added

    decisions = command.decisions_given(args.decisions, 'add')
    with _held(args) as study:
        print(added(study.add(decisions, warm_start=args.warm_start)))


def _retry(args: Args) -> None:
    from paxtune.study_changes import added

    with _held(args) as study:
        print(added(study.retry(args.trial)))


def _stop(args: Args) -> None:
    from paxtune.study_changes import stop

    print(stop(_database(args), args.trials))


def _delete(args: Args) -> None:
    from paxtune.study_changes import delete_study, delete_trials
    from trainer.directory import locked

    if args.trials:
        with _held(args) as study:
            print(delete_trials(study, args.trials, args.yes))
        return
    directory = _database(args).parent
    with locked(directory):
        print(delete_study(directory, args.yes))


@contextlib.contextmanager
def _held(args: Args) -> 'Iterator[Study]':
    """The study, while no search may work on it."""
    from trainer.directory import locked

    with locked(_database(args).parent), _opened(args, can_write=True) as study:
        yield study


def _database(args: Args) -> Path:
    """Where the study is. Raises UserError where none is: nothing is made there."""
    from paxtune.store import database

    path = database(args.dir)
    if not path.exists():
        raise UserError(f'There is no study in {path.parent}: {path.name} is missing.')
    return path


if __name__ == '__main__':
    command.run_command(main)
