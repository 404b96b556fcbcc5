import argparse
import contextlib
import dataclasses
from pathlib import Path

from paxtune.reports.tables import write
from paxtune.service import study_location
from paxtune.studies.base import Args, flag, opened, register, writing
from trainer.command import positive_int
from trainer.symbolic.errors import UserError

# As `paxtune.study.record.Status`, which takes half a second to import.
STATES = ('completed', 'stopped', 'infeasible', 'active', 'paused', 'requested')

_INTERVAL = 2.0
_AXIS = 'reward, or metric to minimize; +METRIC to maximize it'


@register('list', 'lists the studies in a directory and below', is_view=True, is_on_all=True)
def _list(args: Args) -> None:
    from paxtune.reports.study_list import listing, table_of

    if isinstance(args.where, study_location.ServiceLocation):
        write(table_of(args.where.others(), 'The service has no studies.'), args.format)
    else:
        write(listing(Path(args.dir)), args.format)


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.1 <= number <= 86400.0:
        raise argparse.ArgumentTypeError(f'expected seconds, 0.1 to 86400, not {text}')
    return number


@register(
    'show',
    'shows the search space, the progress and the best trials of a study',
    flag(
        '--trial',
        type=study_location.trial_number,
        metavar='TRIAL',
        help='show one trial, its history and the layers of its model: a number, or best',
    ),
    flag('--watch', action='store_true', help='update the view until the study is done'),
    flag('--interval', type=_seconds, metavar='SECONDS', help='time between updates, 2 by default'),
    is_view=True,
)
def _show(args: Args) -> None:
    from paxtune.reports.study_tables import history_of, summary

    if args.watch:
        _watch(args)
        return
    if args.interval is not None:
        raise UserError('--interval is the time between updates of --watch: give both')
    with opened(args) as study:
        page = summary(study) if args.trial is None else history_of(study, args.trial)
        write(page, args.format)


def _watch(args: Args) -> None:
    from paxtune.terminal.live_view import watch
    from trainer.runtime.interrupt import ended_by_signal

    if args.trial is not None or args.format != 'table':
        raise UserError(
            '--watch shows the whole study as text: leave out --trial, --format and --json'
        )
    with ended_by_signal() as ended, contextlib.closing(args.where.store()) as store:
        watch(store, str(args.where), args.interval or _INTERVAL, ended, None, args.where.directory)


@register(
    'trials',
    'shows the trials of a study',
    flag('--state', choices=STATES, help='show only trials in this state'),
    flag(
        '--sort',
        metavar='COLUMN',
        help='sort by a decision, a metric, the reward (best first) or another column; '
        '--sort=-COLUMN reverses the order',
    ),
    flag('--limit', type=positive_int, metavar='N', help='show only the first N trials'),
    flag(
        '--columns',
        metavar='A,B',
        help='show only these columns; decisions, metrics and attributes stand for all of a kind',
    ),
    is_view=True,
)
def _trials(args: Args) -> None:
    from paxtune.reports.study_tables import trials_of

    with opened(args) as study:
        write(trials_of(study, args.state, args.sort, args.limit, args.columns), args.format)


@register(
    'best',
    'shows the best trials, or the Pareto front',
    flag('--top', type=positive_int, metavar='N', help='number of trials, 1 by default'),
    is_view=True,
)
def _best(args: Args) -> None:
    from paxtune.reports.study_parts import train_command
    from paxtune.reports.study_tables import best_of, best_trials

    with opened(args) as study:
        best = best_trials(study, args.top)
        again = train_command(study, best[0], args.exp) if best else ''
        write(best_of(study, best, again), args.format)


@register(
    'pareto',
    'shows and plots the Pareto front of two metrics',
    flag('--x', metavar='METRIC', help=f'{_AXIS}; the first of two rewards, else num_params'),
    flag('--y', metavar='METRIC', help='as --x; the other reward by default'),
    flag('--out', metavar='FILE', help='also draw a plot: FILE.html or FILE.png'),
    is_view=True,
)
def _pareto(args: Args) -> None:
    from paxtune.analysis.trade_off import front_of
    from paxtune.reports import pareto_plot
    from trainer.runtime.directory import write_bytes

    if args.out is not None:
        pareto_plot.require(args.out)
    with opened(args) as study:
        front = front_of(study, args.x, args.y)
    page = pareto_plot.document(front)
    if args.out is not None and front.points:
        with writing(args.out):
            write_bytes(args.out, pareto_plot.rendered(front, args.out))
        page = dataclasses.replace(page, remark=f'{page.remark} Plotted in {args.out}.')
    write(page, args.format)


@register(
    'diff',
    'shows the differences between two trials',
    flag(
        'trials',
        type=int,
        nargs='+',
        metavar='TRIAL',
        help='two trials; a single one is compared with the trial that it was derived from',
    ),
    is_view=True,
)
def _diff(args: Args) -> None:
    from paxtune.reports.study_tables import difference, parent_of

    if len(args.trials) > 2:
        raise UserError(f'diff compares two trials, not {len(args.trials)}')
    with opened(args) as study:
        left = args.trials[0] if len(args.trials) == 2 else parent_of(study, args.trials[0])
        write(difference(study, left, args.trials[-1]), args.format)


@register('lineage', 'draws which trial has its weights from which', is_view=True)
def _lineage(args: Args) -> None:
    from paxtune.reports.lineage import lineage

    with opened(args) as study:
        write(lineage(study), args.format)
