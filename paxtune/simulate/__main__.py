"""Compares schedulers on recorded learning curves, without any training.

    python -m paxtune.studies curves runs/lm.StdlibTunable --out=curves.json
    python -m paxtune.simulate --table=curves.json --scheduler=none,asha,median --workers=8

runs studies with the real schedulers and algorithms, but with simulated workers and clock: trials
replay recorded curves. A table may also be an .npz file with the arrays hp_names [d], hp [n, d] and
a metric [n, t], such as the files of TaskSet. It needs --metric and --goal.

    python -m paxtune.simulate --table=curves.json --scheduler=promoting_asha --workers=3 \\
        --processes --job_log_dir=runs/tried

runs one study with real processes, records and checkpoints; only the training is replayed. Kill
some of its processes to see the effect. The same command again resumes the study.
Exit codes: 0 done, 1 no trial was completed, 2 bad input, 130 or 143 interrupted.
"""

import argparse
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paxtune.command_line import headline, import_factory, run
from paxtune.reports.tables import FORMATS, write
from trainer import command
from trainer.command import positive_int
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.algorithms import Algorithm
    from paxtune.schedulers import Scheduler
    from paxtune.simulate.table import CurveTable
    from paxtune.study.study import Study

_SEEDS = 20


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    args = parser().parse_args(argv)
    _require_one_way(args)

    from paxtune.simulate.comparison import compare, document
    from paxtune.simulate.files import read

    table = read(args.table, args.metric, args.goal)
    algorithm = _algorithm(args.algorithm, table)
    schedulers = {name: _scheduler(name, table) for name in _split(args.scheduler)}
    num_trials = args.num_trials or min(64, len(table.rows))
    if args.processes:
        return _run(args, table, schedulers, algorithm, num_trials, argv)
    workers, seeds = args.workers or 1, args.seeds or _SEEDS
    found = compare(
        table, schedulers, algorithm, num_trials=num_trials, workers=workers, seeds=seeds
    )
    what = (
        f'{num_trials} of {len(table.rows)} trials, {workers} workers, {seeds} seeds; '
        f'{table.metric}, {table.goal}d: {table.best:.6g} is the best there'
    )
    write(document(table, found, what), args.format)
    return 0


def _require_one_way(args: argparse.Namespace) -> None:
    given = [name for name in ('job_log_dir', 'speedup', 'seed') if getattr(args, name) is not None]
    if given and not args.processes:
        raise UserError(f'--{given[0]} is for a study with real processes: add --processes')
    if not args.processes:
        return
    if args.job_log_dir is None:
        raise UserError('--processes writes a study: give its directory, --job_log_dir=DIR')
    if args.seeds is not None:
        raise UserError('--processes runs one study: give --seed=N in place of --seeds')
    if len(schedulers := _split(args.scheduler)) > 1:
        raise UserError(
            f'--processes runs one study: choose one --scheduler of {", ".join(schedulers)}'
        )


def _run(
    args: argparse.Namespace,
    table: 'CurveTable',
    schedulers: 'Mapping[str, Scheduler | None]',
    algorithm: 'Algorithm',
    num_trials: int,
    argv: Sequence[str] | None,
) -> int:
    from paxtune.config.budget import Budget
    from paxtune.config.search import Search
    from paxtune.engines.workers import Workers
    from paxtune.simulate.replay_workload import RecordedTrials
    from paxtune.simulate.simulator import require_rows

    (scheduler,) = schedulers.values()
    require_rows(table, scheduler, num_trials)
    search = Search(table.reward, Budget(num_trials), algorithm, scheduler, seed=args.seed or 0)
    what = RecordedTrials.of(args.table, search, args.metric, args.goal, args.speedup)
    return run(
        what,
        ['paxtune.simulate', *command.given(argv)],
        _summary,
        args.job_log_dir,
        engine=None if args.workers is None else Workers(args.workers),
    )


def _summary(study: 'Study') -> str:
    lines = [headline(study)]
    if study.best is not None:
        lines.append(f'Best trial: {study.best.id}, {study.rewards[0].label}={study.best.reward!r}')
    show = shlex.join(['python', '-m', 'paxtune.studies', 'show', str(study.directory)])
    return '\n'.join([*lines, 'To show it:', f'  {show}'])


def parser() -> argparse.ArgumentParser:
    """Makes the parser of the command's flags."""
    flags = command.parser(__doc__)
    flags.add_argument(
        '--table', required=True, metavar='FILE', help='file of `studies curves`, or .npz'
    )
    flags.add_argument(
        '--scheduler',
        default='none,asha,promoting_asha,median_stopping',
        metavar='SCHEDULER,…',
        help="schedulers to compare: none, asha, median_stopping, 'Asha(min_resource=3)', …; the "
        'lowest rung is 1/27 of the longest trial by default',
    )
    flags.add_argument(
        '--algorithm', default='random_search', help='algorithm, as in paxtune.search'
    )
    flags.add_argument('--workers', type=positive_int, help='trials that run at once; 1 by default')
    flags.add_argument(
        '--num_trials',
        type=positive_int,
        help='trials of each run; 64 by default, or all of a smaller table',
    )
    flags.add_argument(
        '--seeds', type=positive_int, help=f'runs of each scheduler; {_SEEDS} by default'
    )
    flags.add_argument('--metric', help='array of an .npz file with the reward')
    flags.add_argument('--goal', choices=('minimize', 'maximize'), help='direction of --metric')
    flags.add_argument('--format', choices=FORMATS, default='table')
    flags.add_argument(
        '--processes',
        action='store_true',
        help='run one study with real processes: in --workers, or in this one',
    )
    flags.add_argument('--job_log_dir', metavar='DIR', help='directory of the study of --processes')
    flags.add_argument('--seed', type=int, help='random seed of the study of --processes')
    flags.add_argument(
        '--speedup',
        type=_speed,
        metavar='FACTOR',
        help='train FACTOR times as fast as recorded; without waiting by default',
    )
    return flags


def _speed(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f'expected a number above 0, not {text}')
    return number


def _split(text: str) -> list[str]:
    """Splits a text at commas outside of brackets.

    Example:
        >>> _split('none,Asha(min_resource=3, reduction_factor=4), median')
        ['none', 'Asha(min_resource=3, reduction_factor=4)', 'median']
    """
    parts, depth = [''], 0
    for letter in text:
        depth += (letter in '([{') - (letter in ')]}')
        if letter == ',' and depth == 0:
            parts.append('')
        else:
            parts[-1] += letter
    return list(dict.fromkeys(part.strip() for part in parts))


def _scheduler(text: str, table: 'CurveTable') -> 'Scheduler | None':
    from paxtune.config.named_components import component
    from paxtune.schedulers import Scheduler
    from paxtune.schedulers.rungs import default_min_resource

    if text == 'none':
        return None
    longest = max(row.steps for row in table.rows)
    steps = (step for row in table.rows for step in row.resources['steps'])
    known = {'min_resource': default_min_resource(steps, longest)}
    return component(Scheduler, text, f'--scheduler={text}', known)


def _algorithm(text: str, table: 'CurveTable') -> 'Algorithm':
    from paxtune.algorithms import Algorithm
    from paxtune.config.named_components import component

    found = component(Algorithm, text, f'--algorithm={text}')
    import_factory(found)
    found.check_space(table.spec, 1)
    return found


if __name__ == '__main__':
    command.run_command(main)
