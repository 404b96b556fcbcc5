"""Runs trials of a study that a service keeps, until there are no more: one worker of a search.

`python -m paxtune.search --workers=N` starts these processes, and starts them again when they die.
A worker ends with the process that started it. Exit codes: 0 the study is done, 2 bad input,
75 the worker has lost its trial or its study, 76 an error of a trial stops the study.
"""

import argparse
import importlib
import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paxtune.running import device_allocation, json_logs, supervisor
from paxtune.running.callbacks import Callback
from paxtune.service import tokens
from paxtune.storage.open_study import join_study
from paxtune.study.redefinition import fingerprint
from paxtune.study.transitions import DetachedError
from trainer import command
from trainer.runtime.directory import JobPath, job_path
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.objectives.measurement import Measurement
    from paxtune.service.remote_store import RemoteStore
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

_HEARTBEAT_SECONDS = 3.0

# Seconds that a new worker waits for the service, as a running one does.
_PATIENCE = 120.0

_LOG = logging.getLogger('paxtune.worker')


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    args = _flags().parse_args(argv)
    device_allocation.pin([int(core) for core in args.cores.split(',') if core])
    threading.Thread(target=_end_with_parent, name='parent', daemon=True).start()
    directory = job_path(args.job_log_dir)
    worker_lock_file = supervisor.worker_lock_file(directory)
    log = json_logs.start(Path(args.log), study=args.study, worker=args.worker)

    from paxtune.service.client import Client
    from paxtune.service.remote_store import RemoteStore

    for module in filter(None, args.modules.split(',')):
        importlib.import_module(module)
    secret, authority = tokens.secret(None), Path(args.tls_ca) if args.tls_ca else None
    client = Client(args.endpoint, args.study, secret, tls=args.tls, ca_cert=authority)
    client.connect(_PATIENCE)
    store = RemoteStore(client, args.worker)
    with worker_lock_file:
        return _run(store, directory, log, args.definition, args.function)


def _flags() -> argparse.ArgumentParser:
    flags = command.parser(__doc__)
    for name, description in (
        ('endpoint', 'host:port of the service'),
        ('study', 'its name there'),
        ('worker', 'the name of this worker, which no other has'),
        ('job_log_dir', 'where trials write'),
        ('log', 'the file of structured logs'),
        ('definition', "the fingerprint of the study's definition"),
        ('modules', 'what makes the classes of the experiment known'),
    ):
        flags.add_argument(f'--{name}', required=True, help=description)
    flags.add_argument('--function', metavar='MODULE:NAME', help='called in each trial')
    flags.add_argument('--cores', default='', help='the cores to compute on')
    flags.add_argument('--tls', action='store_true', help='speak TLS')
    flags.add_argument('--tls_ca', help='speak TLS, trust this authority')
    return flags


def _run(
    store: 'RemoteStore',
    directory: JobPath,
    log: json_logs.JsonLines,
    definition: str,
    function: str | None,
) -> int:
    try:
        record = store.study()
        if record is None or fingerprint(record) != definition:
            raise UserError('--study: the service has another study of that name by now')
        return _work(store, directory, log, function)
    except DetachedError as error:
        _LOG.warning('detached: %s', error)
        return supervisor.DETACHED


def _work(
    store: 'RemoteStore', directory: JobPath, log: json_logs.JsonLines, function: str | None
) -> int:
    from paxtune.running.function_runner import FunctionRunner
    from paxtune.running.runners import runner_of
    from paxtune.running.tuner import Paused, StudyStoppedError, Tuner
    from paxtune.service.schema import WorkerOptions
    from trainer.runtime.interrupt import Interrupt

    command.enable_compilation_cache()
    study = join_study(store, directory)
    store.options = WorkerOptions(
        trial_timeout=study.search.faults.trial_timeout or 0.0,
        max_attempts=study.search.faults.max_attempts,
    )
    heartbeat = Heartbeat(store)
    with Interrupt() as interrupt:

        def should_interrupt() -> bool:
            heartbeat.steps += 1
            return interrupt.requested()

        heartbeat.start()
        try:
            callbacks = [LogCallback(log), HeartbeatCallback(heartbeat)]
            runner = FunctionRunner.named(function) if function else runner_of(study)
            Tuner(study, runner, callbacks, should_interrupt).run()
        except Paused as reason:
            _LOG.info('paused: %s', reason)
            return interrupt.exit_code if interrupt.requested() else 0
        except StudyStoppedError as error:
            command.say(f'error: {error}', sys.stderr)
            return supervisor.STOPPED
    return 0


class Heartbeat(threading.Thread):
    """Renews the lease of the trial that this worker runs. Without it, the process ends at once.

    Attributes:
        steps: how far the trial has come; the trainer counts each step.
    """

    def __init__(self, store: 'RemoteStore') -> None:
        super().__init__(name='heartbeat', daemon=True)
        self._store = store
        self.steps = 0

    def run(self) -> None:
        waiting = threading.Event()
        while not waiting.wait(min(_HEARTBEAT_SECONDS, self._store.lease_seconds / 10)):
            try:
                lost = self._store.heartbeat(self.steps)
            except Exception as error:
                lost = f'{type(error).__name__}: {error}'
            if lost is not None:
                _LOG.warning('the trial is lost: %s', lost)
                # At once: what this process would still write counts for nothing.
                os._exit(supervisor.DETACHED)


class HeartbeatCallback(Callback):
    """Counts the steps of a trial from where it resumes.

    The steps of a trial that loses one worker after another must show its progress.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        self._heartbeat.steps = 0

    def on_trial_resume(self, study: 'Study', trial: 'Trial', step: int) -> None:
        # Some have been done by now.
        self._heartbeat.steps += step


class LogCallback(Callback):
    """Logs what happens to trials, each time after the study has it."""

    def __init__(self, log: json_logs.JsonLines) -> None:
        self._log = log

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        self._log.context |= {'trial': trial.id, 'attempt': trial.attempt}
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
            self._log.context.pop(name, None)


def _end_with_parent() -> None:
    # The pipe closes when the parent process ends, in any way.
    while os.read(0, 1):
        continue
    os._exit(supervisor.DETACHED)


if __name__ == '__main__':
    command.run_command(main)
