"""Tuning from Python: the functions that the command line calls."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar

import pyglove as pg
from absl import logging
from etils import epy

from paxtune.algorithms import Algorithm
from paxtune.config.named_components import named_part
from paxtune.config.search import Search
from paxtune.engines.base import Engine, Job
from paxtune.engines.in_process import InProcess
from paxtune.objectives.rewards import MetricReward, Objectives, Reward
from paxtune.running.callbacks import Callback, OnTrialEnd
from paxtune.running.define_by_run import traced
from paxtune.running.function_runner import FunctionRunner, import_name
from paxtune.running.runner import Runner, RunnerWorkload
from paxtune.running.tuner import Paused, StudyStoppedError
from paxtune.schedulers import Scheduler
from paxtune.schedulers.rungs import first_rung
from paxtune.storage.open_study import load_study, open_plan
from paxtune.storage.preview import Preview
from paxtune.study import checkpoint_retention, trial_import
from paxtune.study.plan import SearchPlan
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from trainer.runtime import compilation_cache, garbage_collection, wall_clock
from trainer.runtime import directory as directories
from trainer.runtime.directory import JobPath
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.overrides import replaced

with epy.lazy_imports():  # They import JAX, and a study of a function has no use for it.
    from paxtune import experiment as experiments
    from paxtune.engines import multi_host, remote, remote_multi_host, threads
    from paxtune.engines import workers as worker_engine
    from paxtune.running import runners
    from paxtune.terminal import displays, progress
    from trainer import experiment as trainer_experiment
    from trainer.runtime import processes

if TYPE_CHECKING:
    from paxtune.experiment import Tunable
    from trainer.experiment import Experiment

PathLike = str | os.PathLike[str]
V = TypeVar('V', bound='Tunable | RunnerWorkload')


@wall_clock.measuring()
def tune(
    what: Experiment | RunnerWorkload | Callable[..., Any],
    *,
    space: Any = None,
    num_trials: int | None = None,
    job_log_dir: PathLike | None = None,
    objective: Reward | Objectives | Literal['minimize', 'maximize'] | None = None,
    algorithm: Algorithm | str | None = None,
    scheduler: Scheduler | str | None = None,
    seed: int | None = None,
    engine: Engine | None = None,
    workers: int | None = None,
    callbacks: Sequence[Callback | Callable[[Study, Trial], object]] | None = None,
    prior_studies: Iterable[PathLike] = (),
    fork_study: PathLike | None = None,
    study: Study | None = None,
    should_interrupt: Callable[[], bool] = lambda: False,
    exp: str = '',
    argv: Sequence[str] = (),
    **search: Any,
) -> Study:
    """Searches an experiment, or the values that a function is called with.

    The same call again resumes the study. Arguments override fields of `what.search`.

    Several processes (`trainer.runtime.processes`) make the same call, and train each trial of an
    experiment together. The first one has the study, or with `Remote` its part in it; the others
    read it when it is done.

    Args:
        what: an experiment; or a function of the values of a trial, which are passed as
            one object or by name (`FunctionRunner`). The function returns a number or metrics by
            name, or yields metrics, so that it can be stopped early.
        space: for a function: any symbolic value with decisions in it, a dict of them, or the
            result of `pg.hyper.trace`. Without parameters, a function makes its decisions itself:
            it runs once more, with their first values, to find them. For an experiment: decisions,
            and other values, by path.
        num_trials: the study's total (`Budget.trials`); None for all that a finite space has.
        job_log_dir: the directory of the study and of its trials: a local one, or with `Remote`
            also one in Google Cloud Storage, `gs://…`. None keeps the study of a function in
            memory.
        objective: for a function, 'minimize' and 'maximize' mean the number that it returns.
        algorithm: proposes trials, also by its name in `--algorithm`, such as 'random_search'; by
            default the space determines it.
        scheduler: ends trials early, also by its name, such as 'asha'; 'none' trains all trials to
            their ends; by default that of the experiment.
        seed: the random seed of the algorithm.
        callbacks: listen to the study; a function of the study and a trial is called when the trial
            has ended. By default `paxtune.Progress()` on a terminal and in a notebook.
        prior_studies: directories of studies that the algorithm of a new study learns from.
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
        exp: the name of the experiment on the command line, which the study shows.
        argv: the module and the flags of the command that makes the call, which reports show.
        **search: other fields of `Search`, such as `limits` and `budget`.

    Returns:
        The study, open. An interrupt of a study in memory ends the search: `study.interrupted` is
        True, and the trials so far are there.

    Raises:
        UserError: bad input.
        Paused: the study in `job_log_dir` continues in a later call: see `should_interrupt`.
        StudyStoppedError: an error stopped the study, as `search.faults` demands. A study in memory
            is open in `error.study`, and continues with `study=error.study`.

    Example:
        >>> study = tune(
        ...     lambda x: (x - 3) ** 2,
        ...     space={'x': pg.floatv(0.0, 10.0)},
        ...     num_trials=5,
        ...     objective='minimize',
        ... )
        >>> abs(study.best.decisions['x'] - 3) < 1
        True
    """
    if _is_experiment(what):
        what, space = _searched(what, space, objective), None
    if _has_search(what) and (space is not None or job_log_dir is None):
        raise UserError('an experiment needs a job_log_dir for its trials')
    _require_fields(search)
    given = {'objective': objective, 'seed': seed, 'budget.trials': num_trials}
    changes = search | {name: value for name, value in given.items() if value is not None}
    changes |= _chosen(what, {'algorithm': algorithm, 'scheduler': scheduler})
    engine = _engine(what, workers, engine)
    directory = engine.directory(job_log_dir)
    if study is not None and (directory or study.directory or space is not None):
        raise UserError(
            f'study: {study} must be in memory, and has its own space: give neither job_log_dir '
            'nor space'
        )
    with contextlib.ExitStack() as held:
        if _is_experiment(what):
            _require_one_way(engine, processes.count())
            held.enter_context(processes.together())
        compilation_cache.enable()
        plan, runner = _planned(what, space, changes, study, exp, argv)
        _require_fit(plan.search, engine, directory)
        garbage_collection.end_start_up()
        if _is_experiment(what) and engine.follows(plan, should_interrupt):
            assert directory is not None
            return engine.read(directory)
        if study is None:
            priors = list(map(directories.job_path, prior_studies))
            study, opened = engine.open(directory, plan, priors)
            held.enter_context(opened)
        else:
            study = open_plan(None, plan, store=study.store)
        _run(engine, Job(study, runner, _listening(callbacks), should_interrupt), fork_study)
        return study


def preview(
    tunable: Tunable,
    *,
    job_log_dir: PathLike,
    engine: Engine | None = None,
    prior_studies: Iterable[PathLike] = (),
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
    engine = _engine_of_all(engine) if num_processes > 1 else engine or InProcess()
    directory = engine.directory(job_log_dir)
    assert directory is not None
    _require_one_way(engine, num_processes)
    plan, _ = _planned(tunable, None, {}, None, exp)
    _require_fit(plan.search, engine, directory)
    found = engine.preview(directory, plan, list(map(directories.job_path, prior_studies)))
    if fork_study is not None and found.is_new:
        with load_study(fork_study) as source:
            _fork(source, found.study)
    return found, engine


def _run(engine: Engine, job: Job, fork_study: PathLike | None) -> None:
    """Runs the trials of an open study, and closes the study on an error."""
    study = job.study
    with contextlib.ExitStack() as on_error:
        on_error.callback(study.close)
        if fork_study is not None and not study.trials:
            with load_study(fork_study) as source:
                _fork(source, study)
        try:
            engine.run(job)
        except (KeyboardInterrupt, Paused):
            if study.directory is not None:
                raise
            # Only this process has the trials.
            study.interrupted = True
            logging.warning('Interrupted. tune(…, study=study) continues this study.')
        except StudyStoppedError as error:
            if study.directory is None:
                error.study = study
                on_error.pop_all()
            raise
        on_error.pop_all()
    _warn_of_failure(study)


def _searched(experiment: Experiment, space: Any, objective: Any) -> Tunable:
    has_reward = objective is not None or isinstance(experiment, experiments.Tunable)
    if isinstance(objective, str) or not has_reward:
        raise UserError(
            'objective: an experiment without a search of its own needs a reward, such as '
            'MetricReward("minimize", "eval/loss")'
        )
    tunable = experiments.as_tunable(experiment, Search(None))
    if space is not None and not isinstance(space, Mapping):
        raise UserError('space: expected values by path, {"task.learner.learning_rate": …}')
    return tunable if space is None else replaced(tunable, space, 'space')


def _is_experiment(what: object) -> TypeGuard[Tunable]:  # Or `_searched` makes one of it.
    return isinstance(what, Component) and isinstance(what, trainer_experiment.Experiment)


def _has_search(what: object) -> TypeGuard[Tunable | RunnerWorkload]:
    return isinstance(what, RunnerWorkload) or _is_experiment(what)


def _engine(what: Any, workers: int | None, engine: Engine | None) -> Engine:
    if workers is not None:
        if engine is not None:
            raise UserError(f'workers={workers} and engine={engine!r}: give one of them')
        engine = _engine_of(what, workers)
    elif 'jax' in sys.modules and processes.count() > 1:
        engine = _engine_of_all(engine)
    elif engine is None:
        engine = InProcess()
    if not _has_search(what):
        engine.require_function(FunctionRunner(what))
    return engine


def _engine_of_all(engine: Engine | None) -> Engine:
    """Returns the engine of processes that were started together."""
    if engine is None:
        return multi_host.MultiHost()
    if isinstance(engine, remote.Remote) and engine.workers.count == 1:
        return remote_multi_host.RemoteMultiHost(engine)
    return engine


def _engine_of(what: Any, workers: int) -> Engine:
    if _has_search(what) or (workers > 1 and import_name(what)):
        return worker_engine.Workers(workers)
    return InProcess() if workers == 1 else threads.Threads(workers)


def _require_fields(search: Mapping[str, Any]) -> None:
    if unknown := [name for name in search if Search.__schema__.get_field(name) is None]:
        known = [str(name) for name in Search.__schema__.fields]
        raise UserError(f'a search has no {unknown[0]!r}. {nearest(unknown[0], known)}'.rstrip())


def _require_fit(search: Search, engine: Engine, directory: JobPath | None) -> None:
    checkpoint_retention.check(search, directory)
    if search.faults.trial_timeout is not None and not engine.has_workers:
        raise UserError(
            'search.faults.trial_timeout (--trial_timeout): nothing can end a trial in the '
            'process of the search: use workers (--workers=1), or set it to None'
        )


def _listening(
    callbacks: Sequence[Callback | Callable[[Study, Trial], object]] | None,
) -> list[Callback]:
    if callbacks is None:
        # A library may import the kernel where no notebook runs.
        is_notebook = 'ipykernel' in sys.modules and displays.standard_console().is_jupyter
        is_seen = sys.stdout.isatty() or is_notebook
        callbacks = [progress.Progress()] if is_seen else []
    return [each if isinstance(each, Callback) else OnTrialEnd(each) for each in callbacks]


def _chosen(what: Any, given: Mapping[str, Algorithm | Scheduler | str | None]) -> dict[str, Any]:
    """Returns the algorithm and the scheduler that are given, those with names made."""
    found: dict[str, Any] = {name: part for name, part in given.items() if part is not None}
    search = what.search if _has_search(what) else None
    rung = first_rung(what) if _is_experiment(what) else {}
    for name, part in found.items():
        if isinstance(part, str):
            found[name] = named_part(search, name, part, f'{name}={part!r}', rung)
    return found


def _planned(
    what: Tunable | RunnerWorkload | Callable[..., Any],
    space: Any,
    changes: dict[str, Any],
    study: Study | None,
    exp: str,
    argv: Sequence[str] = (),
) -> tuple[SearchPlan, Runner]:
    named: dict[str, Any] = {'exp': exp, 'command': argv}
    if isinstance(what, RunnerWorkload):
        plan = SearchPlan.compile(_changed(what, changes), data=what.data(), **named)
        return plan, what.runner()
    if _is_experiment(what):
        return SearchPlan.compile(_changed(what, changes), **named), runners.ExperimentRunner()
    if space is None and study is None and not inspect.signature(what).parameters:
        space = traced(what)
    if isinstance(space, pg.hyper.DynamicEvaluationContext):  # Of `pg.hyper.trace`.
        space = pg.Dict(space.hyper_dict)
    return SearchPlan.compile(*_of_function(space, changes, study), **named), FunctionRunner(what)


def _require_one_way(engine: Engine, num_processes: int) -> None:
    # Processes that know nothing of each other would each run trials of its own.
    processes.require_joined()
    if isinstance(engine, threads.Threads):
        raise UserError('Threads run functions: use Workers for the trials of an experiment')
    if num_processes > 1 and not isinstance(engine, multi_host.MultiHost):
        raise UserError(
            '--workers runs trials apart, each in a process of its own; --coordinator runs each '
            'trial in all processes: choose one'
        )


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
    failed = [trial for trial in study.trials if trial.is_failed]
    if failed and not any(trial.state == 'COMPLETED' for trial in study.trials):
        logging.warning(
            'No trial was completed. Trial %d: %s', failed[0].id, failed[0].infeasible_reason
        )


def _changed(value: V, changes: Mapping[str, Any]) -> V:
    copy: V = value.clone(deep=True)
    copy.rebind(
        {f'search.{name}': value for name, value in changes.items()}, raise_on_no_change=False
    )
    return copy


def _of_function(space: Any, changes: dict[str, Any], study: Study | None) -> tuple[Any, Search]:
    if space is None and study is not None:
        space = study.value
    if space is None:
        raise UserError(
            'space: a function with arguments needs one, such as {"x": pg.floatv(0.0, 1.0)}'
        )
    value = pg.Dict(space) if type(space) is dict else space
    if not isinstance(value, pg.Object | pg.Dict):
        raise UserError(f'space: expected a dict or a symbolic object, not {type(space).__name__}')
    if isinstance(goal := changes.get('objective'), str):
        if goal not in ('minimize', 'maximize'):
            raise UserError(f"objective: expected 'minimize', 'maximize' or a reward, not {goal!r}")
        changes['objective'] = MetricReward(goal, 'objective')
    if study is not None:
        search = study.search.clone(deep=True)
    elif 'objective' in changes:
        search = Search(changes.pop('objective'))
    else:
        raise UserError("objective: say 'minimize' or 'maximize', or give a reward")
    search.rebind(changes, raise_on_no_change=False)
    return pg.clone(value, deep=True), search
