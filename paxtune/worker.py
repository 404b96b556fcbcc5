"""Runs trials of a study in a service until the study is done: one worker of a search.

`python -m paxtune.search --workers=N` starts workers, and starts those that die again. A worker
ends with the process that started it. With --coordinator, --num_processes and --process_id, several
processes are one worker: they train each trial together, and end together.

Exit codes: 0 the study is done, 2 bad input, 76 an error of a trial stops the study, 130 or 143
interrupted. 75: the trial, the study or a process of the worker was lost. After 75 or a kill, start
all processes of the worker again: the trial continues from its checkpoint.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from paxtune.running import device_allocation, json_logs, supervisor
from paxtune.running.callbacks import Callback
from paxtune.running.worker_arguments import WorkerArguments
from paxtune.running.worker_line import SUPERVISED, exit_now
from paxtune.running.worker_resources import ResourceLog
from paxtune.service import tokens
from paxtune.storage.open_study import join_study
from paxtune.study import code_versions
from paxtune.study.redefinition import fingerprint
from paxtune.study.transitions import DetachedError
from trainer import command
from trainer.runtime import compilation_cache, garbage_collection
from trainer.runtime.directory import JobPath, job_path
from trainer.symbolic.errors import LostProcessError, OtherProcessError, UserError

if TYPE_CHECKING:
    from paxtune.engines.base import Job
    from paxtune.objectives.measurement import Measurement
    from paxtune.service.remote_store import RemoteStore
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

PATIENCE_SECONDS = 120.0
"""A new worker waits for the service as long as a running one does."""

_LOG = logging.getLogger('paxtune.worker')


def main(argv: Sequence[str] | None) -> int:
    """Runs the command, and reports its end; raises UserError for bad input."""
    try:
        code = _run(_flags().parse_args(argv))
    except UserError as error:
        SUPERVISED.report(error.exit_code)
        raise
    SUPERVISED.report(code)
    return code


def _run(args: argparse.Namespace) -> int:
    device_allocation.pin([int(core) for core in args.cores.split(',') if core])
    if args.supervised:
        # SLURM sends the signal before a time limit to all processes of a job; submitit has USR2,
        # or another one of $SUBMITIT_PREEMPT_SIGNAL.
        for each in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(each, signal.SIG_IGN)
        SUPERVISED.begin(supervisor.DETACHED)
    # A cluster that started the process of the supervisor did not start this one.
    if args.coordinator is not None or not args.supervised:
        from trainer.runtime import processes

        processes.start(args)
    directory = job_path(args.job_log_dir)
    worker_lock_file = supervisor.worker_lock_file(directory)
    log = json_logs.start(_log_file(Path(args.log)), study=args.study, worker=args.worker)
    with _together():
        store = _store(args)
    with worker_lock_file:
        return run(store, directory, log, WorkerArguments.of(args))


def _joined() -> bool:
    """True if this process is one of several of the worker."""
    processes = sys.modules.get('trainer.runtime.processes')
    return processes is not None and processes.count() > 1


def _together() -> AbstractContextManager[None]:
    if not _joined():
        return contextlib.nullcontext()

    from trainer.runtime import processes

    return processes.together()


def _flags() -> argparse.ArgumentParser:
    flags = command.parser(__doc__)
    for name, description in (
        ('endpoint', 'host:port of the service'),
        ('study', 'name of the study in the service'),
        ('worker', 'unique name of this worker'),
        ('job_log_dir', 'directory of the study'),
        ('log', 'file for structured logs'),
        ('modules', 'modules to import for the classes of the experiment'),
    ):
        flags.add_argument(f'--{name}', required=True, help=description)
    WorkerArguments.add_flags(flags)
    flags.add_argument('--cores', default='', help='CPU cores to run on')
    flags.add_argument('--supervised', action='store_true', help='end when stdin closes')
    command.add_process_flags(flags)
    flags.add_argument('--tls', action='store_true', help='connect with TLS')
    flags.add_argument('--tls_ca', help='TLS with this authority (PEM)')
    return flags


def _log_file(path: Path) -> Path:
    """Returns the log of this process: each of the worker has its own."""
    if not _joined():
        return path

    from trainer.runtime import processes

    return path if processes.is_first() else path.with_suffix(f'.{processes.index()}.jsonl')


def _store(args: argparse.Namespace) -> 'RemoteStore':
    from paxtune.service.client import Client
    from paxtune.service.remote_store import RemoteStore

    for module in filter(None, args.modules.split(',')):
        importlib.import_module(module)
    secret, authority = tokens.secret(None), Path(args.tls_ca) if args.tls_ca else None
    client = Client(args.endpoint, args.study, secret, tls=args.tls, ca_cert=authority)
    client.connect(PATIENCE_SECONDS)
    return RemoteStore(client, args.worker)


def run(
    store: 'RemoteStore', directory: JobPath, log: json_logs.JsonLines, args: WorkerArguments
) -> int:
    """Trains trials of a study until the worker is to end. Returns its exit code."""
    try:
        with _together():
            record = store.study()
            if record is None or fingerprint(record) != args.definition:
                raise UserError('--study: the service has another study of that name by now')
        with _together():  # All have agreed before the first process takes a trial.
            return _work(store, directory, log, args)
    except (DetachedError, OtherProcessError) as error:
        _LOG.warning('detached: %s', error)
        return supervisor.DETACHED
    except LostProcessError as error:
        _LOG.warning('%s', error)
        exit_now(supervisor.DETACHED)  # JAX would wait for the lost process, and then abort.
        raise


def _work(
    store: 'RemoteStore', directory: JobPath, log: json_logs.JsonLines, args: WorkerArguments
) -> int:
    from paxtune.engines.base import Job
    from paxtune.running.function_runner import FunctionRunner
    from paxtune.running.import_names import imported
    from paxtune.running.trial_errors import StudyStoppedError
    from paxtune.running.tuner import Paused
    from paxtune.running.workloads import Workload
    from trainer.runtime.interrupt import Interrupt

    compilation_cache.enable()
    argv = json.loads(args.argv) if args.argv else ()
    # Before the study, which may have classes of the script.
    function = imported(args.function, argv) if args.function else None
    study = join_study(store, directory)
    _warn_of_other_code(study, function, is_of_script=bool(argv))
    garbage_collection.end_start_up()
    runner = FunctionRunner(function) if function else Workload(study.value).runner()
    with Interrupt(exit_now) as interrupt:
        # SLURM signals all processes of a job, and the supervisor among them forwards the signal.
        interrupt.same_seconds = 5.0

        def should_leave() -> bool:
            return interrupt.requested() or SUPERVISED.leaving.is_set()

        try:
            with ResourceLog(store.worker) as resources:
                job = Job(study, runner, [resources], should_leave)
                if args.pack > 1:
                    _run_packed(job, args.pack, log)
                else:
                    callbacks = [LogCallback(log.context), resources]
                    _run_trials(dataclasses.replace(job, callbacks=callbacks))
        except Paused as reason:
            _LOG.info('paused: %s', reason)
            return _of_all(interrupt.exit_code if interrupt.requested() else 0)
        except StudyStoppedError as error:
            command.say(f'error: {error}', sys.stderr)
            return supervisor.STOPPED
    return 0


def _warn_of_other_code(study: 'Study', function: object, is_of_script: bool) -> None:
    code = study.record.code
    now = code_versions.current(study.value, study.search, function)
    if is_of_script:
        now = code_versions.in_module(now, str(getattr(function, '__module__', '')), '__main__')
    if names := code_versions.changed(code[-1] if code else None, now):
        command.say(
            f'warning: the code of {code_versions.named(names)} is not the code of the search: '
            'results of this worker may not be comparable',
            sys.stderr,
        )


def _run_trials(job: 'Job') -> None:
    from paxtune.engines.leased import leased
    from paxtune.running.tuner import Tuner

    if not _joined():
        job = leased(job)
        Tuner(job.study, job.runner, job.callbacks, job.should_interrupt).run()
        return

    from paxtune.engines import multi_host
    from trainer.runtime import processes

    multi_host.require_experiment(job.study.value)
    if processes.is_first():
        multi_host.lead(leased(job))
    else:
        multi_host.Follower(job.study.space, job.study.search, job.should_interrupt).run()


def _run_packed(job: 'Job', count: int, log: json_logs.JsonLines) -> None:
    """Runs several trials at a time, each in a lane that has leases of its own."""
    from paxtune.engines.base import Job
    from paxtune.engines.leased import leased
    from paxtune.engines.packed import require_packable
    from paxtune.engines.threads import in_threads, note_start_up
    from paxtune.running.experiment_runner import runner_in
    from paxtune.running.tuner import Tuner
    from paxtune.service.leases import lane_name
    from paxtune.service.remote_store import RemoteStore
    from trainer.program.packing.lanes import Lanes

    require_packable(job.runner)
    store, lanes = job.study.store, Lanes(count, 'always', is_shared=True)
    assert isinstance(store, RemoteStore)

    def work(index: int, should_interrupt: Callable[[], bool]) -> None:
        with lanes.lane(index) as lane:
            name = lane_name(store.worker, index)
            context = log.of_threads[threading.get_ident()] = {'worker': name}
            callbacks = [LogCallback(context), *job.callbacks]
            study = join_study(store.as_worker(name), job.study.directory)
            own = leased(Job(study, runner_in(lane), callbacks, should_interrupt))
            Tuner(study, own.runner, own.callbacks, own.should_interrupt, lane).join()

    note_start_up(store)
    in_threads(count, work, job.should_interrupt)


def _of_all(code: int) -> int:
    """Returns the exit code of the process of this worker that received a signal; else 0."""
    if _joined():
        from trainer.runtime import processes

        code = next(filter(None, processes.gather(code)), 0)
    return code


class LogCallback(Callback):
    """Logs the events of trials, after the study has recorded them."""

    def __init__(self, context: dict[str, str | int]) -> None:
        """Keeps the trial and its attempt in the fields of each line."""
        self._context = context

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        self._context |= {'trial': trial.id, 'attempt': trial.attempt}
        _LOG.info('begins: %s', trial.decisions)

    def on_trial_resume(self, study: 'Study', trial: 'Trial', step: int) -> None:
        _LOG.info('resumed from step %d', step)

    def on_measurement(self, study: 'Study', trial: 'Trial', measurement: 'Measurement') -> None:
        rewards, metrics = measurement.rewards, dict(measurement.metrics)
        fields = {'step': measurement.step, 'rewards': rewards, 'metrics': metrics}
        _LOG.info('step %d: %s', measurement.step, rewards, extra={'fields': fields})

    def on_trial_pause(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        _LOG.info('paused: %s', reason)
        self._forget()

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        fields = {'outcome': trial.status, 'rewards': trial.rewards}
        reason = f': {trial.reason}' if trial.reason else ''
        _LOG.info('%s%s', trial.status, reason, extra={'fields': fields})
        self._forget()

    def _forget(self) -> None:
        for name in ('trial', 'attempt'):
            self._context.pop(name, None)


if __name__ == '__main__':
    command.run_command(main, trains=True)
