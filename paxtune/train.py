"""Trains one trial, or an experiment whose decisions are given, as ordinary training.

    python -m paxtune.train --study_dir=runs/lm.StdlibTunable --trial=best --job_log_dir=runs/best
    python -m paxtune.train --exp=lm.StdlibTunable --decisions task.learner.learning_rate=0.01 … \\
        --job_log_dir=runs/mine

A trial is trained exactly as it was in its study, to the last bit on the same machine. The same
command again resumes. Exit codes: 0 done, 2 bad input, 130 interrupted.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer import command
from trainer.errors import UserError

if TYPE_CHECKING:
    import argparse

    from trainer.experiment import Experiment


def main(argv: Sequence[str] | None) -> int:
    """Runs the command.

    Raises:
        UserError: bad input.
    """
    flags = command.parser(__doc__)
    command.add_experiment_flags(flags, required=False)
    flags.add_argument('--study_dir', help='the --job_log_dir of a search')
    flags.add_argument('--trial', help='number of a trial of that study, or best')
    flags.add_argument(
        '--decisions',
        nargs='+',
        action='extend',
        default=[],
        metavar='PATH=VALUE',
        help='decisions to make, such as task.learner.learning_rate=1e-3',
    )
    flags.add_argument('--job_log_dir', required=True, help='where everything is written')
    args = flags.parse_args(argv)
    experiment = experiment_for(args)

    from trainer.main import train

    return train(experiment, args.job_log_dir, resume_command=sys.argv)


def experiment_for(args: 'argparse.Namespace') -> 'Experiment':
    """The experiment that the flags ask for, every decision made.

    Raises:
        UserError: bad input, or decisions are left open.
    """
    from trainer import overrides, registry
    from trainer.experiment import Experiment

    if not args.exp and not args.study_dir:
        raise UserError('name an experiment with --exp, or a study with --study_dir and --trial')
    experiment = registry.find(args.exp, Experiment) if args.exp else None
    if args.study_dir:
        if args.smoke or args.decisions:
            raise UserError('--smoke and --decisions go with --exp, not with a trial of a study')
        # With --exp, the modules of the experiment's own classes have been imported by now.
        return overrides.override(_of_trial(args.study_dir, args.trial), args.set)
    if args.trial:
        raise UserError('--trial needs --study_dir, the --job_log_dir of the search')
    assert experiment is not None
    if args.smoke:
        experiment = overrides.smoke(experiment)
    return _decided(overrides.override(experiment, args.set), args.decisions)


def _of_trial(study_dir: str, name: str | None) -> 'Experiment':
    from paxtune.study import Study

    if not name:
        raise UserError('--trial: expected the number of a trial, or best')
    with Study.load(study_dir) as study:
        if name == 'best':
            trial = study.best
            if trial is None:
                raise UserError(f'--trial=best: no trial of {study_dir} was completed')
        else:
            by_number = {str(trial.id): trial for trial in study.trials}
            if name not in by_number:
                known = f'it has 1 to {len(by_number)}' if by_number else 'it has none'
                raise UserError(f'--trial={name}: {study_dir} has no such trial; {known}')
            trial = by_number[name]
        return trial.materialize()


def _decided(experiment: 'Experiment', decisions: Sequence[str]) -> 'Experiment':
    from paxtune.space import Space

    if not decisions and not command.decisions_left_open(experiment):
        return experiment
    pairs = [text.partition('=') for text in decisions]
    for path, equals, _ in pairs:
        if not equals:
            raise UserError(f'--decisions: expected path=value, not {path!r}')
    space = Space(experiment)
    made = space.parse({path: value for path, _, value in pairs})
    return space.materialize(made)


if __name__ == '__main__':
    command.run_command(main)
