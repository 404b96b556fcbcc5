"""Trains one trial, or an experiment whose decisions are given, as ordinary training.

    python -m paxtune.train --study_dir=runs/lm.StdlibTunable --trial=best --job_log_dir=runs/best
    python -m paxtune.train --exp=lm.StdlibTunable --decisions task.learner.learning_rate=0.01 … \\
        --job_log_dir=runs/mine

The command trains a trial exactly as its study did, to the last bit on the same machine. It trains
the ancestors of a forked trial first (in <job_log_dir>/lineage). The same command again resumes. A
line says so if the code of the trial has changed, or its metrics differ from the recorded ones.
Exit codes: 0 done, 2 bad input, 3 another process was lost, 130 or 143 interrupted.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paxtune.service import study_location
from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from paxtune.running.trial_comparison import RecordedRun
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial
    from trainer.experiment import Experiment
    from trainer.main import OnReport


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    args = parser().parse_args(argv)

    from trainer.main import train
    from trainer.runtime import processes
    from trainer.runtime.directory import job_path

    processes.start(args)
    with processes.together():
        job_path(args.job_log_dir)
        runs = runs_for(args)
        again = ['python', '-m', 'paxtune.train', *command.given(argv)]
        for run in runs:
            if run.parent_checkpoint is not None:
                _fork_checkpoints(*run.parent_checkpoint, run.directory)
            code = train(
                run.experiment,
                run.directory,
                resume_command=again,
                allow_changes=args.allow_changes,
                on_report=_comparing(run.recorded),
            )
            if code:
                return code
    return 0


def _comparing(recorded: 'RecordedRun | None') -> 'OnReport':
    """Makes a listener that prints the first difference from a recorded run, and the last one."""
    printed: list[int] = []

    def compare(step: int, metrics: 'Mapping[str, float]') -> None:
        if recorded is not None and (text := recorded.difference(step, metrics)):
            if not printed or step == max(recorded.metrics):
                command.say_once(text)
            printed.append(step)

    return compare


def parser() -> 'argparse.ArgumentParser':
    """Makes the parser of the command's flags."""
    flags = command.parser(__doc__)
    command.add_experiment_flags(flags, required=False)
    flags.add_argument('--study_dir', help='the --job_log_dir of a search')
    study_location.add_flags(flags, 'the service that keeps the study of --study_dir')
    flags.add_argument(
        '--trial', type=study_location.trial_number, help='number of a trial of that study, or best'
    )
    command.add_list_flag(
        flags, '--decisions', 'PATH=VALUE', 'values of the decisions of --exp, by path'
    )
    flags.add_argument('--job_log_dir', required=True, help='directory of the run')
    command.add_allow_changes_flag(flags)
    command.add_process_flags(flags)
    return flags


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a sequence; each begins when the previous one has ended.

    Attributes:
        directory: of the run.
        experiment: every decision made.
        parent_checkpoint: directory and step of the run that it continues; None for none.
        recorded: the run of the trial that it repeats; None where it shall differ.
    """

    directory: str
    experiment: 'Experiment'
    parent_checkpoint: tuple[str, int] | None = None
    recorded: 'RecordedRun | None' = None


def runs_for(args: 'argparse.Namespace') -> list[Run]:
    """Lists the runs that the flags ask for: one for each sub-experiment, or ancestor of a trial.

    Raises:
        UserError: bad input, or decisions are left open.
    """
    from trainer.experiment import Experiment
    from trainer.symbolic import overrides, registry

    if not args.exp and not args.study_dir:
        raise UserError('name an experiment with --exp, or a study with --study_dir and --trial')
    experiment = registry.find(args.exp, Experiment) if args.exp else None
    if args.study_dir:
        if args.smoke or args.decisions or args.allow_changes:
            raise UserError(
                '--smoke, --decisions and --allow_changes go with --exp, not with a trial of a '
                'study'
            )
        # With --exp, the modules of the experiment's own classes have been imported by now.
        return _of_trial(args)
    if args.trial:
        raise UserError('--trial needs --study_dir, the --job_log_dir of the search')
    assert experiment is not None
    if args.smoke:
        experiment = overrides.smoke(experiment)
    parts = _decided(overrides.override(experiment, args.set), args.decisions)
    return [Run(os.path.join(args.job_log_dir, name), part) for name, part in parts.items()]


def _of_trial(args: 'argparse.Namespace') -> list[Run]:
    from paxtune.running.trial_comparison import RecordedRun, other_circumstances
    from paxtune.running.trial_spec import experiments
    from trainer.symbolic import overrides

    if not args.trial:
        raise UserError('--trial: expected the number of a trial, or best')
    with study_location.from_flags(args, args.study_dir).open() as study:
        trial = study.trial(args.trial)
        _require_weights(study, trial, args.job_log_dir)
        parts = experiments(study, trial)
        warnings, cause = other_circumstances(study, trial, parts)
        runs, parent_checkpoint = _before_fork(study, trial, args, cause)
        before = 0
        for name, part in parts.items():
            experiment = overrides.override(part, args.set)
            _validate_data(study, name, experiment)
            recorded = None if args.set else RecordedRun.of(study, trial, name, before, cause)
            directory = os.path.join(args.job_log_dir, name)
            runs.append(Run(directory, experiment, parent_checkpoint, recorded))
            before += part.train.num_train_steps
        for run in runs:
            _validate_experiment(run.directory, run.experiment)
        for line in warnings:
            command.say(f'warning: {line}', sys.stderr)
        return runs


def _before_fork(
    study: 'Study', trial: 'Trial', args: 'argparse.Namespace', cause: str
) -> tuple[list[Run], tuple[str, int] | None]:
    """Lists the runs of a forked trial's ancestors, and the checkpoint that the trial continues."""
    from paxtune.running.trial_comparison import RecordedRun
    from paxtune.running.trial_spec import experiments
    from trainer.symbolic import overrides

    if trial.lineage.forked_from is None:
        return [], None
    number, step = trial.lineage.forked_from
    parent = study.trial(number)
    runs, parent_checkpoint = _before_fork(study, parent, args, cause)
    (experiment,) = experiments(study, parent).values()
    shorter = overrides.override(experiment, [*args.set, f'train.num_train_steps={step}'])
    directory = os.path.join(args.job_log_dir, 'lineage', str(number))
    recorded = None if args.set else RecordedRun.of(study, parent, '', 0, cause)
    return [*runs, Run(directory, shorter, parent_checkpoint, recorded)], (directory, step)


def _fork_checkpoints(directory: str, step: int, target: str) -> None:
    from trainer.checkpoints.handover import fork_checkpoint
    from trainer.runtime import processes

    with processes.together():
        if processes.is_first():
            fork_checkpoint([directory], step, target)
        processes.agree()


def _require_weights(study: 'Study', trial: 'Trial', job_log_dir: str) -> None:
    from paxtune.study.checkpoint_retention import require_weights
    from trainer.checkpoints.checkpoint import newest_checkpoint

    names = study.space.sub_experiments or ['']
    is_begun = any(
        newest_checkpoint(os.path.join(job_log_dir, name, 'checkpoints')) for name in names
    )
    if trial.lineage.warm_start is not None and not is_begun:
        require_weights(study, study.trial(trial.lineage.warm_start))


def _validate_experiment(job_log_dir: str, experiment: 'Experiment') -> None:
    # A checkpoint of another trial of the same structure could be read, and would be wrong.
    from trainer.checkpoints import experiment_record

    if changes := experiment_record.changes(job_log_dir, experiment_record.recorded(experiment)):
        raise UserError(
            f'--job_log_dir: {job_log_dir} holds another experiment: choose another directory. '
            'There, and in the trial:\n' + '\n'.join(map(str, changes))
        )


def _validate_data(study: 'Study', name: str, experiment: 'Experiment') -> None:
    from trainer.program.setup import prepare_inputs
    from trainer.symbolic.concrete import open_decisions

    prepare_inputs(experiment)
    open_paths = open_decisions(study.value)
    for path, data in experiment.inputs_by_path.items():
        key = f'{path}:{name}' if name else path
        before, now = study.data.get(key), data.fingerprint()
        # Where an input has decisions in it, the study knows the data of one of the choices only.
        is_one = not any(f'{open_path}.'.startswith(f'{path}.') for open_path in open_paths)
        if is_one and before is not None and before != now:
            raise UserError(
                f'{path}: the fingerprint of the data was {before} in the study in '
                f'{study.directory}, and is {now} now: the trial would not train as it did. '
                'Train it on the data of the study; other data go with --exp and --decisions'
            )


def _decided(experiment: 'Experiment', decisions: Sequence[str]) -> 'dict[str, Experiment]':
    from paxtune.experiment import Tunable
    from paxtune.search_space.space import Space
    from paxtune.study.trial_experiments import parts_of
    from trainer.symbolic.concrete import open_decisions

    if not decisions and not open_decisions(experiment):
        return dict(experiment.parts()) if isinstance(experiment, Tunable) else {'': experiment}
    given = command.decisions_given(decisions, '--decisions')
    space = Space(experiment)
    made = space.parse(given)
    if isinstance(experiment, Tunable):
        return dict(parts_of(space, made))
    return {'': space.materialize(made)}


if __name__ == '__main__':
    command.run_command(main, trains=True)
