"""Trains one experiment, evaluates its checkpoints, or decodes from them.

    python -m trainer.main --exp=lm.C4Small --job_log_dir=runs/c4 --mode=train
    python -m trainer.main --exp=lm.C4Small --job_log_dir=runs/c4 --mode=eval

The same command again resumes from the newest checkpoint. The experiment must be the same then,
except for its mesh and train loop, unless --allow_changes is given. --mode=eval evaluates each
new checkpoint of a run until the training ends; it may start before the training does.
--mode=decode decodes from each checkpoint in the same way, into decode_out/. eval_once and
decode_once process only the newest checkpoint, or the one at --checkpoint_step.

The directory may be in Google Cloud Storage, gs://BUCKET/DIRECTORY (pip install 'paxtune[gcs]'),
without a lock against other processes. Several processes, or hosts with a common file system, can
train together: run the same command in each, with

    --coordinator=HOST:PORT --num_processes=2 --process_id=0     (and 1)

Exit codes: 0 done, 2 bad input, 3 another process was lost, 130 or 143 interrupted.
"""

import contextlib
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from trainer.experiment import Experiment
    from trainer.loop.checkpoint_jobs import Job
    from trainer.runtime.profiling import Profiler
    from trainer.runtime.run_profile import RunProfile

MODES = ['train', 'eval', 'eval_once', 'decode', 'decode_once']
"""Values of --mode."""

OnReport: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Called with a step and its metrics."""


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    flags = command.parser(__doc__)
    command.add_experiment_flags(flags)
    flags.add_argument('--job_log_dir', required=True, help='directory of the run')
    flags.add_argument('--mode', choices=MODES, default='train', help='train by default')
    flags.add_argument(
        '--checkpoint_step', type=int, metavar='N', help='step of eval_once and decode_once'
    )
    flags.add_argument(
        '--profile_steps', metavar='A:B', help='profile steps A to B, for TensorBoard'
    )
    flags.add_argument(
        '--pgle',
        action='store_true',
        help='on GPUs, schedule operations by their times in the first steps (profile-guided)',
    )
    command.add_allow_changes_flag(flags)
    command.add_process_flags(flags)
    args = flags.parse_args(argv)

    from trainer.runtime import pgle, processes
    from trainer.runtime.profiling import Profiler

    if args.profile_steps is not None and args.mode != 'train':
        raise UserError('--profile_steps profiles training: leave out --mode')
    if args.checkpoint_step is not None and not args.mode.endswith('_once'):
        raise UserError('--checkpoint_step is for --mode=eval_once and --mode=decode_once')
    if args.pgle and args.mode != 'train':
        raise UserError('--pgle is for training: leave out --mode')
    if args.allow_changes and args.mode != 'train':
        raise UserError('--allow_changes is for training: leave out --mode')
    if args.pgle and args.profile_steps is not None:
        raise UserError('--pgle profiles the first steps itself: leave out --profile_steps')
    profiler = None if args.profile_steps is None else Profiler.parse(args.profile_steps)
    processes.start(args)
    with processes.together():
        if args.pgle:
            pgle.enable()
        experiment = command.experiment_of(args)
        job, _, once = args.mode.partition('_')
        if job != 'train':
            return process_checkpoints(
                job, experiment, args.job_log_dir, once=bool(once), step=args.checkpoint_step
            )
        again = ['python', '-m', 'trainer.main', *command.given(argv)]
        return train(experiment, args.job_log_dir, again, profiler, args.allow_changes)


def train(
    experiment: 'Experiment',
    job_log_dir: str,
    resume_command: Sequence[str],
    profiler: 'Profiler | None' = None,
    allow_changes: bool = False,
    on_report: OnReport = lambda step, metrics: None,
) -> int:
    """Trains an experiment, prints its metrics, and returns the exit code of the command.

    With several processes, the first one prints and locks the directory. Each calls `on_report`
    after each evaluation.

    Raises:
        UserError: bad input, another process trains in the directory, or it holds another
            experiment, unless `allow_changes`.
    """
    from trainer.runtime.signals import SkipTrial, StopTrial

    try:
        return _train(experiment, job_log_dir, resume_command, profiler, allow_changes, on_report)
    except StopTrial as stop:
        command.say_once(f'stopped at step {stop.step}: {stop}')
        return 0
    except SkipTrial as skip:
        raise UserError(f'the experiment gave up at step {skip.step}: {skip}') from skip


def _train(
    experiment: 'Experiment',
    job_log_dir: str,
    resume_command: Sequence[str],
    profiler: 'Profiler | None',
    allow_changes: bool,
    on_report: OnReport,
) -> int:
    from rich.console import Console

    from trainer.loop import train_loop
    from trainer.loop.open_run import prepare_run
    from trainer.loop.report import Interrupted
    from trainer.runtime import (
        compilation_cache,
        directory,
        garbage_collection,
        processes,
        run_profile,
        wall_clock,
    )
    from trainer.runtime.interrupt import Interrupt
    from trainer.runtime.run_display import RunDisplay
    from trainer.symbolic.errors import NonFiniteLossError

    directory.job_path(job_log_dir)  # Configures access to a remote store.
    prepared = prepare_run(experiment, job_log_dir, allow_changes)
    num_steps = prepared.experiment.train.num_train_steps
    if profiler is not None and profiler.first > num_steps:
        raise UserError(f'--profile_steps: the last step of the run is {num_steps}')
    compilation_cache.enable()
    with contextlib.ExitStack() as held:
        if processes.is_first() and directory.is_local(job_log_dir):
            held.enter_context(directory.locked(job_log_dir))
        elif processes.is_first():
            directory.create(job_log_dir)  # There are no locks.
        profile = None
        if processes.is_first():
            clock = held.enter_context(wall_clock.measuring())
            held.enter_context(clock.phase(wall_clock.OTHER))
            if (record := run_profile.recorded(prepared.job_log_dir)) is not None:
                clock.before = record.resumed([prepared.job_log_dir])
            profile = run_profile.RunProfile(prepared.job_log_dir, clock)
            profile.write()
        if prepared.changes:
            command.say_once(
                'The experiment has changed. Before, and now:', *map(str, prepared.changes)
            )
        interrupt = held.enter_context(Interrupt())
        again = shlex.join(resume_command)
        if processes.is_first():
            interrupt.last_words = f'Stopped at once. To go on from the last checkpoint:\n  {again}'
        command.say_once(f'Training to step {num_steps} in {prepared.job_log_dir}')
        console = Console(highlight=False, quiet=not processes.is_first())
        try:
            has_printed, last = False, num_steps
            garbage_collection.end_start_up()
            reports = train_loop.train(prepared, interrupt.requested, profiler)
            with RunDisplay(num_steps, interrupt, console), contextlib.closing(reports):
                for report in reports:
                    if report.resumed_from and not has_printed:
                        has_printed = True
                        command.say_once(f'resumed from step {report.resumed_from}')
                    print_metrics(report.step, report.metrics)
                    on_report(report.step, report.metrics)
                    last = report.step
            files = 'metrics.jsonl, summaries/ for TensorBoard, experiment.json, wall_clock.json'
            command.say_once(f'{_ended(num_steps, last)}. In {prepared.job_log_dir}: {files}')
            _end_profile(profile)
        except Interrupted as stopped:
            if prepared.experiment.train.checkpoints is None:
                command.say_once('Nothing was saved: train.checkpoints is null.')
            command.say_once(f'Stopped at step {stopped.step}. To resume:', f'  {again}')
            _end_profile(profile)
            # Only one of the processes may have received the signal. JAX takes a SIGTERM itself.
            numbers = [number for number in processes.gather(interrupt.number) if number]
            return 128 + (interrupt.number or max(numbers, default=signal.SIGTERM))
        except NonFiniteLossError as error:
            raise UserError(str(error)) from error
    return 0


def _end_profile(profile: 'RunProfile | None') -> None:
    if profile is not None:
        command.say(profile.close())


def _ended(num_steps: int, last: int) -> str:
    if last <= num_steps:
        return f'Trained to step {num_steps}'
    return f'Nothing was trained: the checkpoint has step {last}, train.num_train_steps={num_steps}'


def process_checkpoints(
    job: 'Job', experiment: 'Experiment', job_log_dir: str, once: bool, step: int | None = None
) -> int:
    """Evaluates checkpoints, or decodes from them, prints metrics, and returns the exit code.

    With `once`, processes only the checkpoint of `step`, or the newest.

    Raises:
        UserError: bad input, or the requested checkpoint does not exist.
    """
    from trainer.loop.checkpoint_jobs import process_each, process_one
    from trainer.runtime import compilation_cache, interrupt

    compilation_cache.enable()
    with interrupt.exit_on_signal('Stopped. The same command continues from here.'):
        if once:
            process_one(job, experiment, job_log_dir, print_metrics, step)
        else:
            process_each(job, experiment, job_log_dir, print_metrics)
    return 0


def print_metrics(step: int, metrics: Mapping[str, float]) -> None:
    """Prints a line with the results of evaluation, the training loss, and the speed."""
    from trainer.runtime.run_display import rendered_speed

    evaluated = {
        name: value
        for name, value in sorted(metrics.items())
        if '/' in name and not name.startswith('train/') and '/num_' not in name
    }
    parts = [f'{name}={value:.6g}' for name, value in evaluated.items()]
    command.say_once(f'step {step}: ' + ' '.join([*parts, *rendered_speed(metrics)]))


if __name__ == '__main__':
    command.run_command(main, trains=True)
