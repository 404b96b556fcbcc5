"""Trains or evaluates one experiment.

    python -m trainer.main --exp=lm.C4Small --job_log_dir=runs/c4 --mode=train
    python -m trainer.main --exp=lm.C4Small --job_log_dir=runs/c4 --mode=eval

The same command again resumes from the newest checkpoint. The directory may be in Google Cloud
Storage, gs://BUCKET/DIRECTORY (pip install 'paxtune[gcs]'); there no lock keeps others out. Several
processes, or hosts with a common file system, train together: the same command on each, with

    --coordinator=HOST:PORT --num_processes=2 --process_id=0     (and 1)

Exit codes: 0 done, 2 bad input, 3 another process was lost, 130 or 143 interrupted.
"""

import contextlib
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer import command
from trainer.errors import UserError

if TYPE_CHECKING:
    from trainer.experiment import Experiment
    from trainer.profiling import Profiler


def main(argv: Sequence[str] | None) -> int:
    """Runs the command.

    Raises:
        UserError: bad input.
    """
    flags = command.parser(__doc__)
    command.add_experiment_flags(flags)
    flags.add_argument('--job_log_dir', required=True, help='where everything is written')
    flags.add_argument('--mode', choices=['train', 'eval'], default='train')
    flags.add_argument(
        '--profile_steps', metavar='A:B', help='profile these steps; TensorBoard shows them'
    )
    command.add_process_flags(flags)
    args = flags.parse_args(argv)

    from trainer import overrides, processes, registry
    from trainer.experiment import Experiment
    from trainer.profiling import Profiler

    if args.profile_steps is not None and args.mode != 'train':
        raise UserError('--profile_steps profiles training: leave out --mode')
    profiler = None if args.profile_steps is None else Profiler.parse(args.profile_steps)
    processes.start(args)
    with processes.together():
        experiment = registry.find(args.exp, Experiment)
        if args.smoke:
            experiment = overrides.smoke(experiment)
        experiment = overrides.override(experiment, args.set)
        if args.mode == 'eval':
            return evaluate_newest(experiment, args.job_log_dir)
        again = ['python', '-m', 'trainer.main', *command.given(argv)]
        return train(experiment, args.job_log_dir, again, profiler)


def train(
    experiment: 'Experiment',
    job_log_dir: str,
    resume_command: Sequence[str],
    profiler: 'Profiler | None' = None,
) -> int:
    """Trains an experiment as a command does, printing what it measures. Returns the exit code.

    Of several processes, the first prints, and holds the directory.

    Raises:
        UserError: bad input, or another process trains in the directory.
    """
    from trainer.signals import SkipTrial, StopTrial

    try:
        return _train(experiment, job_log_dir, resume_command, profiler)
    except StopTrial as stop:
        _say(f'stopped at step {stop.step}: {stop}')
        return 0
    except SkipTrial as skip:
        raise UserError(f'the experiment gave up at step {skip.step}: {skip}') from skip


def _train(
    experiment: 'Experiment',
    job_log_dir: str,
    resume_command: Sequence[str],
    profiler: 'Profiler | None',
) -> int:
    experiment = command.concrete(experiment)
    from trainer import directory, processes
    from trainer.interrupt import Interrupt
    from trainer.loop import Interrupted, run
    from trainer.setup import prepare_inputs
    from trainer.train_metrics import NonFiniteLossError
    from trainer.warm_start import sources_of

    directory.job_path(job_log_dir)  # Before anything is looked for there.
    prepare_inputs(experiment)
    sources_of(experiment, job_log_dir)
    command.enable_compilation_cache()
    with contextlib.ExitStack() as held:
        if processes.is_first() and directory.is_local(job_log_dir):
            held.enter_context(directory.locked(job_log_dir))
        elif processes.is_first():
            directory.create(job_log_dir)  # There are no locks.
        interrupt = held.enter_context(Interrupt())
        try:
            told = False
            running = run(experiment, job_log_dir, interrupt.requested, profiler)
            with contextlib.closing(running):
                for measurement in running:
                    if measurement.resumed_from and not told:
                        told = True
                        _say(f'resumed from step {measurement.resumed_from}')
                    print_metrics(measurement.step, measurement.metrics)
        except Interrupted as stopped:
            again = shlex.join(resume_command)
            _say(f'Stopped at step {stopped.step}. To resume: {again}')
            return interrupt.exit_code
        except NonFiniteLossError as error:
            raise UserError(str(error)) from error
    return 0


def evaluate_newest(experiment: 'Experiment', job_log_dir: str) -> int:
    """Evaluates the newest checkpoint and prints its metrics. Returns the exit code.

    Raises:
        UserError: bad input, or there is no checkpoint.
    """
    from trainer.checkpoint import Checkpoints
    from trainer.directory import job_path
    from trainer.evaluate import evaluate
    from trainer.rolling import Rolling
    from trainer.setup import compiled, localized, prepare_inputs

    path = job_path(job_log_dir) / 'checkpoints'
    if not path.exists():
        raise UserError(f'--job_log_dir: there are no checkpoints in {path}')
    experiment = localized(command.concrete(experiment))
    prepare_inputs(experiment)
    command.enable_compilation_cache()
    program, values = compiled(experiment)
    with contextlib.closing(Checkpoints(path)) as checkpoints:
        restored = checkpoints.restore(program.abstract_state)
    if restored is None:
        raise UserError(f'--job_log_dir: there is no checkpoint that can be read in {path}')
    Rolling(experiment.eval_inputs).resume(restored.progress, program.infeed_share)
    print_metrics(restored.step, evaluate(experiment, program, restored.state, values))
    return 0


def print_metrics(step: int, metrics: dict[str, float]) -> None:
    """Prints a line with every metric to its last bit, evaluation first."""
    named = sorted(metrics.items(), key=lambda item: (item[0].startswith('train/'), item[0]))
    _say(f'step {step}: ' + ' '.join(f'{name}={value!r}' for name, value in named))


def _say(text: str) -> None:
    """Prints a line, in the first process."""
    from trainer import processes

    if processes.is_first():
        print(text, flush=True)


if __name__ == '__main__':
    command.run_command(main)
