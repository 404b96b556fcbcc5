"""Transfers settings from small models to large ones.

    python -m paxtune.scale coordinates --exp=lm.C4Small --smoke --widths=96,192,384
    python -m paxtune.scale proxy --width=32 --exp=lm.StdlibTunable --num_trials=16

`coordinates` trains for a few steps at each width, with and without the maximal update
parametrization (muP), and fits how activations grow. `proxy` searches an experiment at a smaller
width, and prints the command that trains the original with the best decisions. It takes all flags
of paxtune.search, and has its exit codes. Exit codes of `coordinates`: 0 done, 2 bad input.
"""

import argparse
import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paxtune import command_line
from paxtune.reports.tables import FORMATS, Document, Table, write
from trainer import command
from trainer.command import positive_int
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from paxtune.experiment import Tunable
    from paxtune.study.study import Study


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    args = parser().parse_args(argv)
    if args.command == 'proxy':
        return _proxy(args, command.given(argv))
    _coordinates(args)
    return 0


def parser() -> argparse.ArgumentParser:
    """Makes the parser of the command's flags."""
    flags = command.parser(__doc__)
    commands = flags.add_subparsers(required=True, metavar='COMMAND', dest='command')
    check = commands.add_parser('coordinates', help='checks how activations grow with the width')
    command.add_experiment_flags(check)
    check.add_argument('--widths', required=True, type=_widths, help='such as 96,192,384')
    check.add_argument('--num_steps', type=positive_int, default=4, help='default: 4')
    check.add_argument('--out', metavar='FILE.html', help='also draw a figure')
    check.add_argument('--format', choices=FORMATS, default='table')
    proxy = commands.add_parser(
        'proxy',
        help='searches at a smaller width',
        parents=[command_line.search_parser(__doc__)],
        conflict_handler='resolve',  # Both have --help.
    )
    proxy.add_argument('--width', type=positive_int, required=True, help='width of the proxy')
    return flags


def _widths(text: str) -> list[int]:
    widths = sorted({positive_int(each) for each in text.split(',')})
    if len(widths) < 2:
        raise argparse.ArgumentTypeError(f'expected at least two widths, not {text}')
    return widths


def _coordinates(args: argparse.Namespace) -> None:
    if args.out is not None and not args.out.endswith('.html'):
        raise UserError(f'--out={args.out}: a figure is FILE.html')

    from paxtune.scale.coordinates import coordinates, slopes
    from paxtune.scale.figures import coordinate_figure
    from trainer.symbolic.concrete import concrete

    found = coordinates(concrete(command.experiment_of(args)), args.widths, args.num_steps)
    rows = [dataclasses.asdict(each) for each in slopes(found)]
    data = {'changes': [dataclasses.asdict(each) for each in found], 'slopes': rows}
    for row in rows:
        row['scaling'] = 'with' if row['is_scaled'] else 'without'
    columns = ['scaling', 'activation', 'step', 'slope']
    table = Table(rows, columns, 'Exponent of the width in the change of activations')
    remark = 'An exponent near 0 is right. One above 0 makes the best learning rate fall.'
    if args.out is not None:
        _write_page(args.out, coordinate_figure(found))
    write(Document(data, rows, columns, [table], remark), args.format)


def _write_page(out: str, figure: 'go.Figure') -> None:
    from paxtune.plots.script import script

    drawn = figure.to_html(include_plotlyjs=False, full_html=False)
    text = f'<!doctype html><meta charset="utf-8"><script>{script().text}</script>{drawn}'
    try:
        Path(out).write_text(text, encoding='utf-8')
    except OSError as error:
        raise UserError(f'--out={out}: {error}') from error


def _proxy(args: argparse.Namespace, argv: Sequence[str]) -> int:
    from paxtune.engines import flags as engine_flags
    from paxtune.scale.widths import resized
    from trainer.runtime import processes

    processes.require_flags(args)
    if args.dry_run:
        raise UserError('--dry_run is a flag of paxtune.search; set the width there with --set')
    tunable = command_line.tunable_for(args)
    own = _transferable_width(tunable, args.width)
    name = f'{args.exp}-width-{args.width}'
    return command_line.run(
        resized(tunable, args.width),
        ['paxtune.scale', *argv],
        lambda study: _summary(study, args.exp, own),
        engine=engine_flags.from_flags(args, name),
        quiet=args.quiet,
        **command_line.study_options(args, name),
    )


def _transferable_width(tunable: 'Tunable', width: int) -> int:
    """The width of an experiment to which the results of a proxy transfer; UserError for others."""
    from paxtune.scale.widths import width_of, with_width_scaling
    from paxtune.search_space.space import Space
    from paxtune.study.samples import first_fitting

    if (own := width_of(tunable)) <= width:
        raise UserError(f'--width={width}: a proxy is narrower than the experiment, {own}')
    if tunable.sub_experiments:
        raise UserError('sub_experiments: a proxy is one model; remove them')
    if tunable.search.warm_start is not None:
        raise UserError(
            'search.warm_start: the model of the full width begins with new weights, so the proxy '
            'must, too; set it to None'
        )
    space = Space(tunable)
    with_width_scaling(first_fitting(space).values[''], width)  # The optimizer.
    return own


def _summary(study: 'Study', exp: str, width: int) -> str:
    """The summary of a search, with the command that trains at another width."""
    from paxtune.running.trial_spec import experiments

    text = command_line.summary(study, exp)
    if study.best is None:
        return text
    proxy = next(iter(experiments(study, study.best).values()))
    known = ['python', '-m', 'paxtune.train', f'--exp={exp}', f'--study_dir={study.directory}']
    target = ['--trial=best', f'--job_log_dir={study.directory}/width-{width}']
    words = [*known, *target, '--set', *_transfer(proxy, width)]
    return f'{text}\nTo train the best at width {width}:\n  {shlex.join(words)}'


def _transfer(proxy: 'Tunable', width: int) -> list[str]:
    """The values of --set that make the proxy of a trial a model of another width."""
    from paxtune.scale.widths import width_of, widths_at

    base = json.dumps(widths_at(proxy, width_of(proxy)))
    target = [f'{path}={value}' for path, value in widths_at(proxy, width).items()]
    return [*target, f'task.learner.width_scaling=WidthScaling(base={base})']


if __name__ == '__main__':
    command.run_command(main)
