"""Searches the decisions of an experiment.

    python -m paxtune.search --exp=lm.StdlibTunable --num_trials=16

Every trial is an ordinary training run under <job_log_dir>/trials. The same command again resumes
the study, the trial that was interrupted first; --num_trials is the study's total. Exit codes:
0 done (or out of --max_hours), 1 no trial was completed, 2 bad input, 130 or 143 interrupted.
"""

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer import command
from trainer.errors import UserError

if TYPE_CHECKING:
    import argparse

    from paxtune.experiment import Tunable
    from paxtune.study import Study


def main(argv: Sequence[str] | None) -> int:
    """Runs the command.

    Raises:
        UserError: bad input.
    """
    args = _flags().parse_args(argv)
    tunable = tunable_for(args)
    job_log_dir = args.job_log_dir or f'runs/{args.exp}' + ('-smoke' if args.smoke else '')
    data = prepared_data(tunable, args)

    from trainer import directory
    from trainer.interrupt import Interrupt

    with directory.locked(job_log_dir):
        command.enable_compilation_cache()
        from paxtune.console import Progress
        from paxtune.study import Study
        from paxtune.tuner import Paused, Tuner

        with Study.open(job_log_dir, tunable, data) as study, Interrupt() as interrupt:
            progress = Progress(tunable.search.reward.label, study.num_trials)
            try:
                with progress:
                    Tuner(study, progress, interrupt.requested, args.max_hours).run()
            except Paused as reason:
                again = shlex.join(['python', '-m', 'paxtune.search', *command.given(argv)])
                print(f'Paused: {reason}. The study is saved in {job_log_dir}. To resume: {again}')
                return interrupt.exit_code if interrupt.requested() else 0
            print(summary(study, args.exp))
            return 0 if study.best is not None else 1


def _flags() -> 'argparse.ArgumentParser':
    flags = command.parser(__doc__)
    command.add_experiment_flags(flags)
    flags.add_argument('--num_trials', type=int, help="the study's total")
    flags.add_argument('--job_log_dir', help='where everything is written; runs/<exp> by default')
    flags.add_argument(
        '--algorithm', help="random_search, regularized_evolution, or 'RandomSearch()'"
    )
    flags.add_argument('--seed', type=int, help='what the algorithm draws from')
    flags.add_argument('--max_hours', type=float, help='stop after so long; resumable')
    flags.add_argument(
        '--tune',
        nargs='+',
        action='extend',
        default=[],
        metavar='PATH=DECISION',
        help='search over a value, such as \'task.learner.learning_rate=floatv(1e-4,1e-2,"log")\'',
    )
    return flags


def tunable_for(args: 'argparse.Namespace') -> 'Tunable':
    """The experiment that the flags ask for.

    Raises:
        UserError: bad input.
    """
    from paxtune.experiment import Tunable
    from trainer import overrides, registry

    tunable = registry.find(args.exp, Tunable)
    if args.smoke:
        tunable = overrides.smoke(tunable)
    tunable = overrides.tune(overrides.override(tunable, args.set), args.tune)
    flags = {'num_trials': args.num_trials, 'seed': args.seed}
    changes = {f'search.{name}={value}' for name, value in flags.items() if value is not None}
    tunable = overrides.override(tunable, sorted(changes))
    if args.algorithm is not None:
        tunable = _with_algorithm(tunable, args.algorithm)
    _check_reward(tunable)
    return tunable


def _with_algorithm(tunable: 'Tunable', text: str) -> 'Tunable':
    """The experiment with the algorithm of --algorithm; of its own class, it keeps its own."""
    import paxtune.algorithms as algorithms
    from trainer import overrides

    classes = {
        re.sub(r'(?<!^)(?=[A-Z])', '_', name).lower(): name
        for name, kind in vars(algorithms).items()
        if isinstance(kind, type) and issubclass(kind, algorithms.Algorithm)
    }
    del classes['algorithm']
    if '(' not in text:
        if text not in classes:
            raise UserError(f'--algorithm={text}: expected one of {", ".join(sorted(classes))}')
        if type(tunable.search.algorithm).__name__ == classes[text]:
            return tunable
        text = f'{classes[text]}()'
    return overrides.override(tunable, [f'search.algorithm={text}'])


def _check_reward(tunable: 'Tunable') -> None:
    """A metric of an evaluation set that is not there would show only after the first trial."""
    from paxtune.rewards import MetricReward

    reward = tunable.search.reward
    if not isinstance(reward, MetricReward):
        return
    if reward.metric == 'train/tokens_per_second':
        raise UserError(
            f'search.reward.metric: {reward.metric!r} measures the machine, not the trial: trained '
            'again, or resumed, the same trial would have another reward. Name another metric'
        )
    if '/' in reward.metric:
        group = reward.metric.split('/')[0]
        groups = ['train', *tunable.eval_inputs]
        if group not in groups:
            raise UserError(
                f'search.reward.metric: {reward.metric!r} is not measured: the metrics of this '
                f'experiment begin with {", ".join(f"{name}/" for name in groups)}'
            )


def prepared_data(tunable: 'Tunable', args: 'argparse.Namespace') -> dict[str, str]:
    """Fingerprints of the data by input, once it is known to be there.

    Raises:
        UserError: it is not.
    """
    from trainer.setup import concrete_inputs, prepare_inputs

    try:
        prepare_inputs(tunable)
    except UserError as error:
        if args.smoke or not tunable.smoke:
            raise
        tiny = f'python -m paxtune.search --exp={args.exp} --num_trials=4 --smoke'
        raise UserError(
            f'{error}\nTo see whether the experiment runs at all, without that data:\n  {tiny}'
        ) from error
    return {path: data.fingerprint() for path, data in concrete_inputs(tunable).items()}


def summary(study: 'Study', exp: str) -> str:
    """What a finished study has to say.

    Args:
        study: all its trials are terminal.
        exp: the experiment as --exp names it.
    """
    from paxtune.tuner import outcome

    trials = study.trials
    counts: dict[str, int] = {}
    for trial in trials:
        state, _ = outcome(trial)
        counts[state] = counts.get(state, 0) + 1
    counted = ', '.join(f'{count} {state}' for state, count in sorted(counts.items()))
    lines = [f'The study has all of its {len(trials)} trials ({counted}): {study.directory}']
    if study.exhausted and len(trials) < study.num_trials:
        lines.append(f'There are no more than {len(trials)} different experiments in its space.')
    best = study.best
    if best is None:
        return '\n'.join([*lines, 'No trial was completed: see error.txt in their directories.'])
    lines.append(f'Best trial: {best.id}, {study.tunable.search.reward.label}={best.reward!r}')
    lines += [f'  {path} = {value}' for path, value in best.decisions.items()]
    # With --exp, as only its module makes the classes known that the experiment is built of.
    train = ['python', '-m', 'paxtune.train', f'--exp={exp}', f'--study_dir={study.directory}']
    target = ['--trial=best', f'--job_log_dir={study.directory / f"best-{best.id}"}']
    return '\n'.join([*lines, 'To train it:', '  ' + shlex.join([*train, *target])])


if __name__ == '__main__':
    command.run_command(main)
