"""Looks at studies, and changes them.

    python -m paxtune.studies list [ROOT]
    python -m paxtune.studies show|trials|best|pareto|diff|lineage|export|curves DIR …
    python -m paxtune.studies add|confirm|import|retry|delete|recover DIR …
    python -m paxtune.studies ask|tell DIR …
    python -m paxtune.studies stop DIR [TRIAL …]

DIR is the --job_log_dir of a search. While a search works there, it can be looked at, and `stop`
works. For a study that a service keeps, --vizier_endpoint=HOST:PORT --study=NAME takes the place of
DIR. What changes a study, or builds a model, needs classes of your own: --exp names the experiment
as the search does, so that its module is imported. `… studies show --help` describes one command.
Exit codes: 0 done, 2 bad input.
"""

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from paxtune.reports.tables import FORMATS, say, write
from paxtune.service import study_location
from trainer import command
from trainer.command import positive_int
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.study.study import Study

Args: TypeAlias = argparse.Namespace

# As `paxtune.study.record.Status`, which takes half a second to import.
STATES = ('completed', 'stopped', 'infeasible', 'active', 'paused', 'requested')

_INTERVAL = 2.0


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    is_in_service = any(
        each.partition('=')[0] in (study_location.FLAG, study_location.STORAGE_FLAG)
        for each in command.given(argv)
    )
    flags = _flags(is_in_service)
    args, rest = flags.parse_known_args(argv)
    # Python 3.11 ends a list of trials, which may be empty, where the first flag comes.
    if rest and hasattr(args, 'trials') and all(text.isdecimal() for text in rest):
        args.trials += map(int, rest)
    elif rest:
        flags.error(f'unrecognized arguments: {" ".join(rest)}')

    from paxtune.service.schema import RequestRejectedError
    from paxtune.storage.database import DatabaseUnavailableError
    from paxtune.storage.study_file import unreadable
    from paxtune.storage.vizier_store import BROKEN
    from paxtune.study.transitions import DetachedError

    args.where = study_location.from_flags(args)
    try:
        args.run(args)
    except (DatabaseUnavailableError, DetachedError, RequestRejectedError) as error:
        raise unreadable(args.where, None, error) from error
    except BROKEN as error:
        directory = Path(args.dir) if hasattr(args, 'dir') else None
        raise unreadable(args.where, directory, error) from error
    return 0


def _flags(is_in_service: bool) -> argparse.ArgumentParser:
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
            parser.set_defaults(exp='-')  # All are listed; a client needs a name of one.
        else:
            # It would be taken for the first of what comes after it.
            if not is_in_service:
                parser.add_argument('dir', metavar='DIR', help='the --job_log_dir of a search')
            parser.add_argument(
                '--exp', metavar='NAME', help='the experiment, where it has classes of your own'
            )
        study_location.add_flags(parser, 'in place of DIR: the service that keeps the study')
        if is_view:
            parser.add_argument('--format', choices=FORMATS, default='table')
        return parser

    add('list', _list, 'shows the studies in a directory and below', is_view=True)
    parser = add(
        'show', _show, 'shows what a study searches, how far it is, and its best', is_view=True
    )
    parser.add_argument(
        '--trial',
        type=_number_or_best,
        metavar='TRIAL',
        help='a number, or best: what happened to this trial, and what its model is, by layers',
    )
    parser.add_argument('--watch', action='store_true', help='continue until the study is done')
    parser.add_argument(
        '--interval', type=_seconds, metavar='SECONDS', help='how often; every 2 s by default'
    )
    parser = add('trials', _trials, 'shows the trials of a study', is_view=True)
    parser.add_argument('--state', choices=STATES, help='only these')
    parser.add_argument(
        '--sort',
        metavar='COLUMN',
        help='sort by a decision, a metric, the reward (best first) or another column; '
        '--sort=-COLUMN the other way round',
    )
    parser.add_argument('--limit', type=positive_int, metavar='N', help='only the first of them')
    parser.add_argument(
        '--columns',
        metavar='A,B',
        help='only these columns; decisions and metrics: a column for each of them',
    )
    parser = add('best', _best, 'shows the best trials, or the Pareto front', is_view=True)
    parser.add_argument('--top', type=positive_int, metavar='N', help='how many; 1 by default')
    parser = add(
        'pareto',
        _pareto,
        'shows which trials no other one beats in two numbers, and plots them',
        is_view=True,
    )
    axis = 'a reward, or a metric, of which less is better; +METRIC where more is'
    parser.add_argument(
        '--x', metavar='METRIC', help=f'{axis}; the first of two rewards, else num_params'
    )
    parser.add_argument('--y', metavar='METRIC', help='the same; the other reward by default')
    parser.add_argument('--out', metavar='FILE', help='a plot as well, FILE.html or FILE.png')
    parser = add('diff', _diff, 'shows what differs between two trials', is_view=True)
    parser.add_argument(
        'trials',
        type=int,
        nargs='+',
        metavar='TRIAL',
        help='two of them; one alone is compared with the trial that it was derived from',
    )
    add('lineage', _lineage, 'draws which trial has its weights from which', is_view=True)
    parser = add('export', _export, 'writes a whole study as JSON')
    parser.add_argument('--out', metavar='FILE', help='standard output by default')
    parser = add('curves', _curves, 'writes the learning curves, for python -m paxtune.simulate')
    parser.add_argument('--out', metavar='FILE', help='.json; standard output by default')
    parser = add('import', _import, 'adds the ended trials that `export` wrote, where they fit')
    parser.add_argument('file', metavar='FILE')
    parser = add('add', _add, 'adds a trial, which will run before new suggestions')
    parser.add_argument(
        'decisions', nargs='+', metavar='PATH=VALUE', help='others are drawn at random'
    )
    parser.add_argument(
        '--warm_start', type=int, metavar='TRIAL', help='begin with the weights of this trial'
    )
    parser = add(
        'confirm', _confirm, 'adds replicates of the best trials, with other training seeds'
    )
    parser.add_argument('--top', type=positive_int, metavar='N', default=5, help='of how many; 5')
    parser.add_argument(
        '--replicates',
        type=positive_int,
        metavar='N',
        default=3,
        help='trials of each, all in all; 3',
    )
    parser = add('ask', _ask, 'hands out trials that are computed elsewhere, as lines of JSON')
    parser.add_argument('--count', type=positive_int, metavar='N', default=1, help='how many; 1')
    parser = add('tell', _tell, 'ends a trial that `ask` has handed out')
    parser.add_argument('trial', type=int, metavar='TRIAL')
    parser.add_argument(
        'metrics', nargs='*', metavar='METRIC=VALUE', help='a number alone is that of the reward'
    )
    parser.add_argument('--infeasible', metavar='REASON', help='in place of metrics')
    parser = add('stop', _stop, 'asks the search to stop trials, or to pause')
    parser.add_argument('trials', type=int, nargs='*', metavar='TRIAL')
    parser = add('retry', _retry, 'adds a trial that repeats another one')
    parser.add_argument('trial', type=int, metavar='TRIAL')
    parser = add('delete', _delete, 'deletes trials and their directories, or a whole study')
    parser.add_argument('trials', type=int, nargs='*', metavar='TRIAL')
    parser.add_argument('--yes', action='store_true', help='delete; else only say what would be')
    add('recover', _recover, 'rebuilds a broken study.db from the records of the trials')
    return flags


def _number_or_best(text: str) -> int | str:
    if text != 'best' and not text.isdecimal():
        raise argparse.ArgumentTypeError(f'expected the number of a trial, or best, not {text}')
    return text if text == 'best' else int(text)


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.1 <= number <= 86400.0:
        raise argparse.ArgumentTypeError(f'expected seconds, 0.1 to 86400, not {text}')
    return number


# --- Looking ---


def _list(args: Args) -> None:
    from paxtune.reports.overview import listing, table_of

    if isinstance(args.where, study_location.ServiceLocation):
        write(table_of(args.where.others(), 'The service has no studies.'), args.format)
    else:
        write(listing(Path(args.dir)), args.format)


def _show(args: Args) -> None:
    from paxtune.reports.study_tables import best_number, history_of, summary

    if args.watch:
        _watch(args)
        return
    if args.interval is not None:
        raise UserError('--interval says how often --watch looks: give both')
    with _opened(args) as study:
        number = best_number(study) if args.trial == 'best' else args.trial
        write(summary(study) if number is None else history_of(study, number), args.format)


def _watch(args: Args) -> None:
    from paxtune.reports.live_view import watch
    from trainer.runtime.interrupt import signal_event

    if args.trial is not None or args.format != 'table':
        raise UserError('--watch shows the whole study, to people: leave --trial and --format out')
    with signal_event() as ended, contextlib.closing(args.where.store()) as store:
        watch(store, str(args.where), args.interval or _INTERVAL, ended, None, args.where.directory)


def _trials(args: Args) -> None:
    from paxtune.reports.study_tables import trials_of

    with _opened(args) as study:
        write(trials_of(study, args.state, args.sort, args.limit, args.columns), args.format)


def _best(args: Args) -> None:
    from paxtune.reports.study_tables import best_of, best_trials
    from paxtune.search import train_command

    with _opened(args) as study:
        best = best_trials(study, args.top)
        # A study of a function has nothing to train, and one elsewhere cannot be named by a path.
        can_train = best and hasattr(study.value, 'parts') and study.directory is not None
        exp = args.exp or study.record.exp or None
        again = train_command(study, best[0], exp) if can_train else ''
        write(best_of(study, best, again), args.format)


def _pareto(args: Args) -> None:
    from paxtune.reports import pareto_plot, pareto_table
    from trainer.runtime.directory import write_bytes

    if args.out is not None:
        pareto_plot.require(args.out)
    with _opened(args) as study:
        front = pareto_table.front_of(study, args.x, args.y)
    page = pareto_table.document(front)
    if args.out is not None and front.points:
        with _writing(args.out):
            write_bytes(args.out, pareto_plot.rendered(front, args.out))
        page = dataclasses.replace(page, remark=f'{page.remark} Plotted in {args.out}.')
    write(page, args.format)


def _diff(args: Args) -> None:
    from paxtune.reports.study_tables import difference, parent_of

    if len(args.trials) > 2:
        raise UserError(f'diff compares two trials: {len(args.trials)} are named')
    with _opened(args) as study:
        left = args.trials[0] if len(args.trials) == 2 else parent_of(study, args.trials[0])
        write(difference(study, left, args.trials[-1]), args.format)


def _lineage(args: Args) -> None:
    from paxtune.reports.lineage import lineage

    with _opened(args) as study:
        write(lineage(study), args.format)


def _export(args: Args) -> None:
    from paxtune.study import export

    with _opened(args) as study:
        text = json.dumps(export.export(study), indent=2, allow_nan=False)
    _put(args.out, text + '\n')


def _curves(args: Args) -> None:
    from paxtune.simulation.export import curves

    if args.out is not None and not args.out.endswith('.json'):
        raise UserError(f'--out={args.out}: curves are written as JSON: name it FILE.json')
    with _opened(args) as study:
        text = curves(study)
    _put(args.out, text)


def _put(out: str | None, text: str) -> None:
    from trainer.runtime.directory import write_text

    if out is None:
        say(text)
        return
    with _writing(out):
        write_text(out, text)


@contextlib.contextmanager
def _writing(out: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f'--out={out}: cannot be written: {error.strerror}') from error


@contextlib.contextmanager
def _opened(args: Args, can_write: bool = False) -> 'Iterator[Study]':
    if args.exp:
        from trainer.symbolic import registry
        from trainer.symbolic.component import Component

        # Only its module makes the classes known that the experiment is built of.
        registry.find(args.exp, Component)
    with args.where.open(can_write) as study:
        yield study


def _require_local(args: Args, name: str, why: str) -> None:
    if study_location.is_apart(args):
        raise UserError(f'{name} {args.where}: {why}')


# --- Changing ---


def _import(args: Args) -> None:
    from paxtune.reports.study_edits import import_file

    with _held(args) as study:
        command.say(import_file(study, args.file))


def _add(args: Args) -> None:
    from paxtune.reports.study_edits import added

    decisions = command.decisions_given(args.decisions, 'add')
    with _held(args) as study:
        command.say(added(study.add(decisions, warm_start=args.warm_start)))


def _retry(args: Args) -> None:
    from paxtune.reports.study_edits import added

    with _held(args) as study:
        command.say(added(study.retry(args.trial)))


def _confirm(args: Args) -> None:
    from paxtune.reports.study_edits import confirmed

    with _held(args) as study:
        command.say(confirmed(study.confirm(args.top, args.replicates)))


def _ask(args: Args) -> None:
    from paxtune.reports.ask_tell import ask

    with _held(args, is_shared=True) as study:
        for line in ask(study, args.count):
            print(line, flush=True)


def _tell(args: Args) -> None:
    from paxtune.reports.ask_tell import tell

    with _held(args, is_shared=True) as study:
        print(tell(study, args.trial, args.metrics, args.infeasible))


def _stop(args: Args) -> None:
    from paxtune.reports.study_edits import stop

    command.say(stop(args.where, args.trials))


def _delete(args: Args) -> None:
    from paxtune.reports.study_edits import delete_from_service, delete_study, delete_trials
    from paxtune.storage.deletion import delete

    if study_location.is_apart(args) and not args.trials:
        command.say(delete_from_service(args.where, args.yes))
        return
    _require_local(args, 'delete', 'the directories of trials are where their workers are')
    if args.trials:
        with _held(args) as study:
            command.say(delete_trials(study, args.trials, args.yes))
        return
    # A kill may have left a part of it under another name.
    if args.yes and not Path(args.dir).exists() and delete(Path(args.dir)):
        command.say(f'Deleted: {args.dir}.')
        return
    with args.where.locked() as directory:
        command.say(delete_study(directory, args.yes))


def _recover(args: Args) -> None:
    from paxtune.storage.recovery import recover
    from trainer.runtime.directory import locked

    _require_local(args, 'recover', 'a service keeps its studies in its own database')
    if not Path(args.dir).is_dir():
        raise UserError(f'{args.dir}: there is no such directory')
    with locked(args.dir) as directory:
        command.say(recover(directory))


@contextlib.contextmanager
def _held(args: Args, is_shared: bool = False) -> 'Iterator[Study]':
    """The study, while no search may work in its directory, or none that does not share it."""
    with args.where.locked(is_shared), _opened(args, can_write=True) as study:
        yield study


if __name__ == '__main__':
    command.run_command(main)
