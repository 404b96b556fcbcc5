"""Searches the decisions of an experiment.

    python -m paxtune.search --exp=lm.StdlibTunable --num_trials=16

Every trial is an ordinary training run under <job_log_dir>/trials. The same command again resumes
the study, with interrupted trials first. Several processes, or hosts with a common file system, can
train each trial together: run the same command in each, with

    --coordinator=HOST:PORT --num_processes=2 --process_id=0     (and 1)

With --vizier_endpoint these processes are one worker of that service. --storage=vizier://HOST:PORT
stores the study in any Vizier server.

Exit codes: 0 done (or out of --max_hours), 1 no trial was completed, 2 bad input, 130 or 143
interrupted. 3: another process was lost. 75: the trial or the service was lost.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paxtune import command_line
from paxtune.engines import flags as engine_flags
from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import argparse

    from paxtune.experiment import Tunable


def parser() -> 'argparse.ArgumentParser':
    """Makes the parser of the command's flags."""
    return command_line.search_parser(__doc__)


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    args = parser().parse_args(argv)

    from trainer.runtime import processes

    if args.dry_run:
        return _dry_run(args)
    is_apart = args.workers is not None or getattr(args, 'engine', None) is not None
    if args.coordinator is not None or not is_apart:
        processes.start(args)
    again = ['paxtune.search', *command.given(argv)]
    with processes.together():
        workload = command_line.workload_for(args, again)
        name = command_line.study_name(args)
        engine = engine_flags.from_flags(args, name)

    from paxtune.study.data_fingerprints import MissingDataError

    try:
        return command_line.run(
            workload,
            again,
            lambda study: command_line.summary(study, args.exp),
            engine=engine,
            quiet=args.quiet,
            **command_line.study_options(args, name),
        )
    except MissingDataError as error:
        raise _with_a_way_out(error, workload.what, args) from error


def _dry_run(args: 'argparse.Namespace') -> int:
    """Prints the plan of the search."""
    from paxtune.api import preview
    from paxtune.reports.dry_run import show_dry_run
    from paxtune.service.study_location import readable
    from paxtune.study.data_fingerprints import MissingDataError
    from paxtune.terminal.displays import standard_console
    from trainer.runtime import processes

    processes.require_flags(args)
    workload, name = command_line.workload_for(args), command_line.study_name(args)
    options = command_line.study_options(args, name)
    engine, where = engine_flags.from_flags(args, name), options['job_log_dir']
    try:
        with readable(where, Path(where)):
            found, engine = preview(
                workload, engine=engine, num_processes=args.num_processes or 1, **options
            )
    except MissingDataError as error:
        raise _with_a_way_out(error, workload.what, args) from error
    with found.study:
        show_dry_run(found, engine, standard_console())
    return 0


def _with_a_way_out(error: UserError, tunable: 'Tunable', args: 'argparse.Namespace') -> UserError:
    if args.smoke or not tunable.smoke:
        return error
    flags = [f'--exp={args.exp}', '--num_trials=4', '--smoke']
    if args.metric is not None:
        flags += [f'--metric={args.metric}', f'--goal={args.goal}']
    flags += ['--tune', *args.tune] if args.tune else []
    tiny = shlex.join(['python', '-m', 'paxtune.search', *flags])
    return UserError(
        f'{error}\nTo see whether the experiment runs at all, without that data:\n  {tiny}'
    )


if __name__ == '__main__':
    command.run_command(main, trains=True)
