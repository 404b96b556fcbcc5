"""Flags and results of a search, which the commands `scale`, `simulate` and `supernet` share."""

import collections
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paxtune.config import other_names
from paxtune.engines import flags as engine_flags
from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import argparse

    from paxtune.experiment import Tunable
    from paxtune.running.workloads import Workload
    from paxtune.study.study import Study
    from paxtune.study.workload import RunnerWorkload
    from paxtune.terminal.progress import Progress
    from trainer.experiment import Experiment

_FIELDS: 'dict[str, tuple[str, type, str]]' = {
    'seed': ('seed', int, 'random seed of the algorithm'),
    'replicates': ('replicates', int, 'trials of the same decisions, with other training seeds'),
    'num_trials': ('budget.trials', int, 'trials of the study; 16 if the experiment defines none'),
    'max_hours': ('budget.hours', float, 'hours that all trials may take together'),
    'max_device_hours': ('budget.device_hours', float, 'hours times devices of all trials'),
    'target_reward': ('budget.target_reward', float, 'stop when a trial reaches this reward'),
    'max_attempts': ('faults.max_attempts', int, 'attempts at a trial that crashes or hangs'),
    'trial_timeout': ('faults.trial_timeout', float, 'seconds after which a step counts as hung'),
    'max_consecutive_failures': (
        'faults.max_consecutive_failures',
        int,
        'end the search, with the reasons, after this many failed trials in a row',
    ),
}
"""The flags that set fields of `Search`: path, type and help."""


def run(
    what: 'Tunable | RunnerWorkload | Workload',
    argv: Sequence[str],
    summarize: 'Callable[[Study], str]',
    job_log_dir: str,
    exp: str = '',
    quiet: bool = False,
    **options: Any,
) -> int:
    """Tunes as a command: prints a summary, or the command that resumes the study.

    Args:
        what: the workload.
        argv: the module and the flags of the command.
        summarize: renders a study that is done.
        job_log_dir: the directory of the study.
        exp: the name of the experiment.
        quiet: prints no progress, only the summary.
        **options: of `paxtune.tune`.

    Returns:
        The exit code.

    Raises:
        UserError: bad input.
    """
    from paxtune.api import tune
    from paxtune.running import device_allocation
    from paxtune.running.supervisor import DETACHED
    from paxtune.running.trial_errors import StudyStoppedError
    from paxtune.running.tuner import INTERRUPTED, NOT_BEGUN, Paused
    from paxtune.running.workloads import workload_of
    from paxtune.service.study_location import readable
    from paxtune.storage.database import DatabaseUnavailableError
    from paxtune.study.transitions import DetachedError
    from paxtune.terminal.progress import Progress
    from trainer.runtime import processes
    from trainer.runtime.interrupt import Interrupt

    engine = options.get('engine')
    if engine is not None and engine.has_workers and processes.count() == 1:
        device_allocation.leave_accelerators_to_workers()
    again = shlex.join(['python', '-m', *argv])
    saved = f'The study is saved in {job_log_dir}. To resume:\n  {again}'
    with Interrupt() as interrupt, readable(job_log_dir, Path(job_log_dir)):
        if processes.is_first():
            interrupt.last_words = (
                f'Stopped at once. The same command goes on with {job_log_dir}:\n  {again}'
            )
        progress = Progress(interrupt=interrupt, ends_with_profile=False)
        options |= {'job_log_dir': job_log_dir, 'callbacks': [] if quiet else [progress]}
        try:
            workload = workload_of(what, exp=exp, command=tuple(argv))
            study = tune(workload, should_interrupt=interrupt.requested, **options)
        except Paused as reason:
            kept = 'Nothing was written' if str(reason) == NOT_BEGUN else saved
            _say_with_profile(f'Paused: {reason}. {kept}', progress)
            return interrupt.exit_code if str(reason) in (INTERRUPTED, NOT_BEGUN) else 0
        except (StudyStoppedError, DatabaseUnavailableError, DetachedError) as error:
            _say_with_profile(f'Stopped: {error}. {saved}', progress)
            return DETACHED if isinstance(error, DetachedError) else 1
    with study:
        _say_with_profile(summarize(study), progress)
        return 0 if study.candidates else 1


def _say_with_profile(result: str, progress: 'Progress') -> None:
    command.say_once(*filter(None, [result, progress.profile]))


def search_parser(description: str | None) -> 'argparse.ArgumentParser':
    """Makes a parser of all flags of a search."""
    flags = command.parser(description, other_names.FLAGS)
    command.add_experiment_flags(flags)
    flags.add_argument(
        '--job_log_dir',
        help='directory of the study, runs/<study> by default; with a service also gs://…',
    )
    flags.add_argument(
        '--algorithm',
        help="default, gp_bandit, tpe, random_search, …, or a call: 'GPBandit(num_initial=8)'",
    )
    flags.add_argument(
        '--scheduler',
        help="stops trials early: default, none, asha, …, or a call: 'Asha(min_resource=10)'",
    )
    for name, (_, kind, text) in _FIELDS.items():
        flags.add_argument(f'--{name}', type=kind, help=text)
    flags.add_argument(
        '--initial_trials',
        metavar='FILE',
        help='JSON file with the decisions of the first trials: [{path: value}]',
    )
    flags.add_argument(
        '--initial_defaults',
        action='store_true',
        help="run the experiment's defaults as the first trial",
    )
    command.add_list_flag(
        flags,
        '--prior',
        'PATH=VALUE',
        'good values, or intervals: task.learner.learning_rate=[1e-4,1e-3]; none: also without '
        'usual values',
    )
    command.add_list_flag(flags, '--prior_studies', 'DIR', 'studies that the algorithm learns from')
    flags.add_argument(
        '--learn_from', metavar='DIR', help='learn from the most similar studies below, as in runs'
    )
    flags.add_argument('--fork_study', metavar='DIR', help='start with the trials of this study')
    command.add_tune_flag(flags)
    flags.add_argument('--metric', help='metric to optimize, such as eval/loss; needs --goal')
    flags.add_argument('--goal', choices=['minimize', 'maximize'], help='direction of --metric')
    flags.add_argument(
        '--dry_run', action='store_true', help='print what the search would do, and write nothing'
    )
    flags.add_argument(
        '--quiet', action='store_true', help='print no progress, only the summary and errors'
    )
    command.add_process_flags(flags)
    engine_flags.add_flags(flags)
    return flags


def study_name(args: 'argparse.Namespace') -> str:
    """Names the study of a search, where --study does not."""
    return args.exp + ('-smoke' if args.smoke else '')


def study_options(args: 'argparse.Namespace', name: str) -> dict[str, Any]:
    """Returns the arguments of `paxtune.tune` that name studies."""
    return {
        # Each study of a service has a directory of its own.
        'job_log_dir': args.job_log_dir or f'runs/{args.study or name}',
        'prior_studies': args.prior_studies,
        'learn_from': args.learn_from,
        'fork_study': args.fork_study,
        'exp': args.exp,
    }


def tunable_for(args: 'argparse.Namespace') -> 'Tunable':
    """The experiment that the flags ask for; raises UserError for bad input."""
    tunable: Tunable = workload_for(args).what
    return tunable


def workload_for(args: 'argparse.Namespace', argv: Sequence[str] = ()) -> 'Workload':
    """The workload that the flags ask for, in a command of `argv`; raises UserError as above."""
    from trainer.experiment import Experiment
    from trainer.symbolic import overrides, registry

    experiment = registry.find(args.exp, Experiment)
    if args.smoke:
        experiment = overrides.smoke(experiment)
    base = overrides.override(_with_objective(experiment, args), args.set)
    tunable = overrides.tune(base, args.tune)
    given = {path: getattr(args, name) for name, (path, *_) in _FIELDS.items()}
    changes = [f'search.{path}={value}' for path, value in given.items() if value is not None]
    tunable = overrides.override(tunable, changes)
    for name in ('algorithm', 'scheduler'):
        if (text := getattr(args, name)) is not None:
            tunable = with_part(tunable, name, text)
    tunable = _with_prior(_with_initial_trials(tunable, base, args), args.prior)
    # Imported last: it takes a while, and bad input is refused at once.
    from paxtune.running.workloads import Workload

    return Workload(tunable, args.exp, tuple(argv), base)


def _with_objective(experiment: 'Experiment', args: 'argparse.Namespace') -> 'Tunable':
    from paxtune.config.budget import Budget
    from paxtune.config.search import Search
    from paxtune.experiment import Tunable, as_tunable
    from paxtune.objectives.rewards import MetricReward

    if (args.metric is None) != (args.goal is None):
        raise UserError('--metric and --goal: give both, as --metric=eval/loss --goal=minimize')
    if args.metric is None and not isinstance(experiment, Tunable):
        raise UserError(
            f'--exp={args.exp} defines no search: name the metric to optimize, such as '
            '--metric=eval/loss --goal=minimize'
        )
    tunable = as_tunable(experiment, Search(None, Budget(16)))
    if args.metric is not None:
        tunable.rebind({'search.objective': MetricReward(args.goal, args.metric)})
    return tunable


def _with_initial_trials(
    tunable: 'Tunable', base: 'Tunable', args: 'argparse.Namespace'
) -> 'Tunable':
    from paxtune.search_space.space import Space
    from paxtune.study import initial_trials

    file = args.initial_trials
    given = initial_trials.read(file, Space(tunable)) if file else []
    if args.initial_defaults:
        defaults = initial_trials.defaults(Space(tunable), base, '--initial_defaults')
        given = [defaults, *given]
    if given:
        tunable.rebind({'search.initial_trials': [*tunable.search.initial_trials, *given]})
    return tunable


def _with_prior(tunable: 'Tunable', assignments: Sequence[str]) -> 'Tunable':
    from trainer.symbolic import literals

    if list(assignments) == ['none']:
        return tunable.rebind({'search.prior': None}, raise_on_no_change=False)
    given: dict[str, Any] = {}
    for each in assignments:
        path, sign, text = each.partition('=')
        if not (path and sign):
            raise UserError(f'--prior={each}: expected PATH=VALUE, or none alone')
        value = literals.parse(text, f'--prior: {path}')
        given[path] = list(value) if isinstance(value, tuple) else value
    if given:
        tunable.rebind({'search.prior': {**(tunable.search.prior or {}), **given}})
    return tunable


def import_factory(algorithm: object) -> None:
    """Imports the factory of an algorithm that a flag names; a study imports nothing it names."""
    from paxtune import algorithms
    from paxtune.algorithms.external import import_path

    if isinstance(algorithm, algorithms.DnaGenerator | algorithms.VizierDesigner):
        import_path.import_named(algorithm.factory)


def with_part(tunable: 'Tunable', name: str, text: str) -> 'Tunable':
    """Returns the experiment with the algorithm or the scheduler that a flag names."""
    from paxtune.config.named_components import named_part
    from paxtune.schedulers.rungs import first_rung
    from trainer.symbolic import overrides

    where, known = f'--{name}={text}', first_rung(tunable) if name == 'scheduler' else {}
    made = named_part(tunable.search, name, text, where, known)
    if '(' in text:
        import_factory(made)
    return overrides.replaced(tunable, {f'search.{name}': made}, where)


def summary(study: 'Study', exp: str) -> str:
    """Renders the result of a finished study, whose experiment --exp names."""
    from paxtune.reports.study_parts import edges_text, rungs_text, train_command

    lines = [headline(study)]
    rewards = study.search.rewards
    if not study.candidates:
        failed = any(trial.is_failed for trial in study.trials)
        hint = ': see error.txt in their directories' if failed else ''
        return '\n'.join([*lines, f'No trial was completed{hint}.'])
    if len(rewards) != 1:
        if rewards:
            front = ', '.join(str(trial.id) for trial in study.pareto_front)
            lines.append(f'No trial is better in all objectives than these: {front}')
        where = study.store.flags or [str(study.directory)]
        show = shlex.join(['python', '-m', 'paxtune.studies', 'trials', *where])
        return '\n'.join([*lines, 'To compare them:', f'  {show}'])
    standing = study.leaderboard[0]
    best = standing.trial
    lines.append(f'Best trial: {best.id}, {rewards[0].label}={best.reward!r}')
    if len(standing.trials) > 1:
        trials = ', '.join(str(trial.id) for trial in standing.trials)
        mean, error = standing.rewards[0], standing.standard_errors[0]
        lines.append(f'Mean of its replicates (trials {trials}): {mean:.6g} ± {error:.2g}')
    lines += [f'  {path} = {value}' for path, value in best.decisions.items()]
    lines += [*edges_text(study), *rungs_text(study)]
    return '\n'.join([*lines, 'To train it:', f'  {train_command(study, best, exp)}'])


def headline(study: 'Study') -> str:
    """The first line about a study that is done."""
    counts = collections.Counter(trial.status for trial in study.trials)
    counted = ', '.join(f'{count} {state}' for state, count in sorted(counts.items()))
    return f'The study is done: {study.done_reason} ({counted}): {study.directory}'
