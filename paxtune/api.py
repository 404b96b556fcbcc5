"""Tuning from Python: the functions that the command line calls."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from absl import logging
from etils import epy

from paxtune.algorithms import Algorithm
from paxtune.config.budget import hours_of
from paxtune.engines.base import Engine, Job, is_count
from paxtune.engines.choice import engine_for
from paxtune.objectives.measurement import in_words
from paxtune.objectives.rewards import Objectives, Reward
from paxtune.running.callbacks import Callback, OnTrialEnd
from paxtune.running.import_names import require_no_import
from paxtune.running.tuner import NOT_BEGUN, Paused
from paxtune.running.workloads import FunctionWorkload, Workload, workload_of
from paxtune.schedulers import Scheduler
from paxtune.storage.open_study import load_study, open_plan
from paxtune.storage.preview import Preview
from paxtune.storage.similar_studies import PriorStudy, StudiesBelow
from paxtune.study import known_values, trial_import
from paxtune.study.reasons import commonest
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.workload import RunnerWorkload
from trainer import command
from trainer.runtime import compilation_cache, garbage_collection, interrupt, wall_clock
from trainer.runtime import directory as directories
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import to_json_text

with epy.lazy_imports():  # They import JAX, and a study of a function has no use for it.
    from paxtune.terminal import displays, progress
    from trainer.runtime import processes

if TYPE_CHECKING:
    from paxtune.experiment import Tunable
    from trainer.experiment import Experiment

_SHOWN_REASONS = 3

PathLike = str | os.PathLike[str]
Callbacks = Sequence[Callback | Callable[[Study, Trial], object]]


@wall_clock.measuring()
def tune(
    what: Experiment | RunnerWorkload | Workload | Callable[..., Any],
    *,
    space: Any = None,
    num_trials: int | None = None,
    timeout: float | datetime.timedelta | None = None,
    job_log_dir: PathLike | None = None,
    objective: Reward | Objectives | Literal['minimize', 'maximize'] | None = None,
    algorithm: Algorithm | str | None = None,
    scheduler: Scheduler | str | None = None,
    seed: int | None = None,
    engine: Engine | None = None,
    workers: int | None = None,
    callbacks: Callbacks | None = None,
    quiet: bool = False,
    prior_studies: Collection[PathLike] = (),
    learn_from: PathLike | None = None,
    fork_study: PathLike | None = None,
    study: Study | None = None,
    should_interrupt: Callable[[], bool] = lambda: False,
    **search: Any,
) -> Study:
    """Searches an experiment, or the values that a function is called with.

    The same call again resumes the study. Arguments override fields of `what.search`.

    Several processes (`trainer.runtime.processes`) make the same call, and train each trial of an
    experiment together. The first process has the study, or with `Remote` its part in it; other
    processes read it when it is done.

    Args:
        what: an experiment; or a function of the values of a trial, which are passed as
            one object or by name (`FunctionRunner`). The function returns a number or metrics by
            name, or yields metrics, so that it can be stopped early.
        space: for a function: any symbolic value with decisions in it, a dict of them, or the
            result of `pg.hyper.trace`. Without parameters, a function makes its decisions itself:
            it runs once more, with their first values, to find them. For an experiment: decisions,
            and other values, by path.
        num_trials: the study's total (`Budget.trials`); None for all that a finite space has.
        timeout: the seconds that the search may take, in all calls, or a `timedelta`. It sets
            `Budget.hours`, times the number of trials at a time.
        job_log_dir: the directory of the study and of its trials: a local one, or with `Remote`
            also one in Google Cloud Storage, `gs://…`. None keeps the study of a function in
            memory.
        objective: for a function, 'minimize' and 'maximize' mean the number that it returns.
        algorithm: proposes trials, also by its name in `--algorithm`, such as 'random_search'; by
            default the space determines it.
        scheduler: ends trials early, also by its name, such as 'asha'; 'none' trains all trials to
            their ends; by default the scheduler of the experiment.
        seed: the random seed of the algorithm.
        callbacks: listen to the study; a function of the study and a trial is called when the trial
            has ended. By default `paxtune.Progress()` on a terminal and in a notebook; elsewhere
            lines on standard error for trials that end.
        quiet: shows no progress: no callback is the default.
        prior_studies: directories of studies that the algorithm of a new study learns from.
        learn_from: a directory; the algorithm of a new study learns from the most similar studies
            in it and below.
        fork_study: the directory of a study whose trials a new study begins with.
        study: a study in memory that this call continues, in its space, and with its search where
            this call changes nothing.
        engine: runs the trials: `InProcess()`, `Threads(2)`, `Workers(2)`, `Remote(...)`,
            `Ray(16)`, or `MultiHost()`. By default this process, or all processes that were started
            together.
        workers: the number of trials at a time: in processes (`Workers`), or in threads (`Threads`)
            where processes cannot import the function.
        should_interrupt: asked after every execution of training steps; on True the trial is
            saved, and `Paused` raised.
        **search: other fields of `Search`, such as `limits` and `prior`. `prior={'lr': 1e-3}` says
            where good values lie. Usual values are known by common names of arguments, too;
            `prior=None` searches without them.

    Returns:
        The study, open. An interrupt of a study in memory ends the search: `study.interrupted` is
        True, and it has all trials until then.

    Raises:
        UserError: bad input.
        Paused: the study in `job_log_dir` continues in a later call: see `should_interrupt`.
        StudyStoppedError: an error stopped the study, as `search.faults` demands.
        BaseException: as a callback. Where any error ends a study in memory, the study is open in
            `error.study`, and continues with `study=error.study`.

    Example:
        >>> import pyglove as pg
        >>> study = tune(
        ...     lambda x: (x - 3) ** 2,
        ...     space={'x': pg.floatv(0.0, 10.0)},
        ...     num_trials=5,
        ...     objective='minimize',
        ... )
        >>> abs(study.best.decisions['x'] - 3) < 1
        True
    """
    require_no_import()
    _require_kinds(locals())
    workload = workload_of(what, space, objective, study)
    engine = engine_for(workload, engine, workers, _num_processes())
    if job_log_dir is None and not isinstance(workload, FunctionWorkload):
        raise UserError('an experiment needs a job_log_dir for its trials')
    directory = engine.directory(job_log_dir)
    if isinstance(directory, Path) and isinstance(workload, FunctionWorkload):
        directory = directory.absolute()  # A function may change the current one.
    if study is not None and (directory or study.directory):
        raise UserError(f'study: {study} must be in memory: give no job_log_dir')
    with contextlib.ExitStack() as held:
        if workload.trains:
            held.enter_context(processes.together())
        compilation_cache.enable()
        given: dict[str, Any] = {'objective': objective, 'seed': seed, 'budget.trials': num_trials}
        given |= {'algorithm': algorithm, 'scheduler': scheduler}
        if timeout is not None:
            if (hours := getattr(search.get('budget'), 'hours', None)) is not None:
                raise UserError(f'timeout={timeout!r} and Budget(hours={hours}): give one of them')
            given['budget.hours'] = hours_of(timeout, engine.trials_at_once)
        changes = {name: value for name, value in given.items() if value is not None}
        try:
            with interrupt.asking(should_interrupt):
                plan = workload.plan(search | changes)
        except interrupt.InterruptRequested:
            raise Paused(NOT_BEGUN) from None
        if directory is not None and isinstance(workload, FunctionWorkload):
            to_json_text(plan.space.value)  # Raises before anything is written.
        engine.require_search(plan.search, directory)
        garbage_collection.end_start_up()
        if (followed := engine.follow(directory, plan, should_interrupt)) is not None:
            return followed
        if study is None:
            study, opened = engine.open(directory, plan, _priors(prior_studies, learn_from))
            held.enter_context(opened)
        else:
            study = open_plan(None, plan, store=study.store)
        if not quiet and callbacks != [] and not study.trials:
            _say_known(study, workload)
        job = Job(study, workload.runner(), _listening(callbacks, quiet), should_interrupt)
        run_trials(engine, job, fork_study)
    return engine.reopened(study)


def preview(
    what: Tunable | Workload,
    *,
    job_log_dir: PathLike,
    engine: Engine | None = None,
    prior_studies: Collection[PathLike] = (),
    learn_from: PathLike | None = None,
    fork_study: PathLike | None = None,
    exp: str = '',
    num_processes: int = 1,
) -> tuple[Preview, Engine]:
    """Opens the study of an experiment as `tune` does with these arguments, to look at it.

    Nothing is written, no server is started, and no trial runs.

    Args:
        num_processes: the number of processes that would make the call.

    Returns:
        The study, and the engine that would run its trials.

    Raises:
        UserError: as `tune`.
    """
    workload = workload_of(what, exp=exp)
    engine = engine_for(workload, engine, None, num_processes)
    directory = engine.directory(job_log_dir)
    assert directory is not None
    plan = workload.plan({})
    engine.require_search(plan.search, directory)
    found = engine.preview(directory, plan, _priors(prior_studies, learn_from))
    if fork_study is not None and found.is_new:
        with load_study(fork_study) as source:
            _fork(source, found.study)
    return found, engine


def _priors(studies: Collection[PathLike], below: PathLike | None) -> list[PriorStudy]:
    found: list[PriorStudy] = [*map(directories.job_path, studies)]
    return found if below is None else [*found, StudiesBelow(Path(below).expanduser())]


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and os.fspath(value) != ''


def _is_callback(value: Any) -> bool:
    return isinstance(value, Callback) or (callable(value) and not isinstance(value, type))


def _are_several(value: Any, is_one: Callable[[Any], bool]) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str) and all(map(is_one, value))


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    'job_log_dir': (_is_path, 'the path of a directory'),
    'engine': (lambda value: isinstance(value, Engine), 'an engine, such as Threads(2)'),
    'workers': (is_count, 'an integer of at least 1'),
    'callbacks': (
        lambda value: _are_several(value, _is_callback),
        'a list of callbacks and of functions of a study and a trial',
    ),
    'quiet': (lambda value: isinstance(value, bool), 'True or False'),
    'prior_studies': (lambda value: _are_several(value, _is_path), 'a list of directories'),
    'learn_from': (_is_path, 'the directory of studies'),
    'fork_study': (_is_path, 'the directory of a study'),
    'study': (lambda value: isinstance(value, Study), 'a study in memory'),
    'should_interrupt': (callable, 'a function without arguments'),
}


def _require_kinds(given: Mapping[str, Any]) -> None:
    for name, (fits, expected) in _KINDS.items():
        is_missing = given[name] is None and name not in ('prior_studies', 'should_interrupt')
        if not (is_missing or fits(value := given[name])):
            raise UserError(f'{name}: expected {expected}, not {in_words(value)}')


def run_trials(engine: Engine, job: Job, fork_study: PathLike | None) -> None:
    """Runs the trials of an open study, and closes the study on an error."""
    study = job.study
    again = f'tune(…, job_log_dir={str(study.directory)!r}) continues it.'
    answers = (
        'Interrupted: running trials are saved. Ctrl-C again stops at once.' * engine.has_workers,
        'Stopped at once.' + f' The study is saved: {again}' * (study.directory is not None),
    )
    with contextlib.ExitStack() as on_error, interrupt.answered_ctrl_c(*answers) as count:
        on_error.callback(study.close)
        if fork_study is not None and not study.trials:
            with load_study(fork_study) as source:
                _fork(source, study)
        try:
            engine.run(job)
        except (KeyboardInterrupt, Paused) as error:
            if study.directory is not None:
                if isinstance(error, KeyboardInterrupt) and count() < len(answers):
                    command.say(f'Interrupted. The study is saved: {again}', sys.stderr)
                raise
            # Only this process has the trials.
            study.interrupted = True
            command.say(
                f'Interrupted after {command.counted(len(study.trials), "trial")}. The program '
                'goes on: study.interrupted is True, and tune(…, study=study) continues the study.',
                sys.stderr,
            )
        except BaseException as error:
            if study.directory is None:
                error.__dict__['study'] = study
                error.add_note('tune(…, study=error.study) continues the study in memory.')
                on_error.pop_all()
            raise
        on_error.pop_all()
    _warn_of_failure(study)


def _num_processes() -> int:
    return processes.count() if 'jax' in sys.modules else 1


def _listening(callbacks: Callbacks | None, quiet: bool) -> list[Callback]:
    if callbacks is None and quiet:
        return []
    if callbacks is None:
        # A library may import the kernel where no notebook runs.
        is_notebook = 'ipykernel' in sys.modules and displays.standard_console().is_jupyter
        is_seen = sys.stdout.isatty() or is_notebook
        callbacks = [progress.Progress() if is_seen else progress.Lines()]
    return [each if isinstance(each, Callback) else OnTrialEnd(each) for each in callbacks]


def _say_known(study: Study, workload: Workload) -> None:
    """Prints the known values that a new search begins with."""
    if known := study.record.known:
        off = '--prior=none' if workload.command else 'prior=None'
        text = f'Known values: {known_values.in_words(study.space, known)}.'
        command.say(f'{text} {off} searches without them.', sys.stderr)


def _fork(source: Study, study: Study) -> None:
    count, total = trial_import.fork(source, study), len(source.trials)
    if not count and not study.trials:  # Another process was faster otherwise.
        raise UserError(
            f'--fork_study: none of the {total} trials in {source.directory} has ended, has the '
            'metrics of the reward and fits into the search space'
        )
    logging.info('%d of %d trials were taken from %s', count, total, source.directory)


def _warn_of_failure(study: Study) -> None:
    # Trials that all fail have a bug in common.
    lost = [trial for trial in study.trials if trial.state == 'INFEASIBLE']
    if lost and not study.candidates:
        reasons = commonest(trial.reason or '' for trial in lost)
        logging.warning(
            'No trial was completed. %s',
            '; '.join(f'{count} × {reason}' for count, reason in reasons[:_SHOWN_REASONS]),
        )
