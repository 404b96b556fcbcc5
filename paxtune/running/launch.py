"""Runs a study with workers: processes of this machine, on a service of their own or another's."""

import dataclasses
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import logging

from paxtune.running import supervisor as workers
from paxtune.running.callbacks import Callback
from paxtune.running.event_poller import Watcher
from paxtune.running.json_logs import LOGS
from paxtune.running.tuner import INTERRUPTED, Paused, StudyStoppedError, take_up
from paxtune.service.address import Service
from paxtune.service.coordinator import LEASE_SECONDS, StudyCoordinator
from paxtune.service.schema import RequestRejectedError
from paxtune.service.server import Server
from paxtune.storage.local_store import LocalStore
from paxtune.study.study import Study
from paxtune.study.transitions import DetachedError
from trainer.symbolic.errors import UserError


@dataclasses.dataclass(frozen=True)
class Workers:
    """How many workers there are, and what they may use.

    Attributes:
        count: how many.
        memory_gb: a worker whose resident memory passes so many GiB is ended, and its trial tried
            again; None for any.
        modules: imported by workers, beside those of the experiment's classes.
    """

    count: int
    memory_gb: float | None = None
    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f'--workers={self.count}: expected at least 1')
        if self.memory_gb is not None and not self.memory_gb > 0:
            raise UserError(f'--worker_memory={self.memory_gb}: expected more than 0 (GiB)')


def run(
    study: Study,
    how: Workers,
    callbacks: Sequence[Callback] = (),
    should_interrupt: Callable[[], bool] = lambda: False,
    lease_seconds: float = LEASE_SECONDS,
) -> None:
    """Runs the trials of a study in workers, until it is done.

    The study's database is this process's alone: a service inside it, which only this machine can
    reach and only the workers know the token of, is what they speak to.

    Args:
        study: in a directory that this process has locked.
        how: the workers.
        callbacks: what listens.
        should_interrupt: asked often; on True the workers save, and end.
        lease_seconds: how long a worker may be silent.

    Raises:
        Paused: it goes on in a later call.
        StudyStoppedError: an error stops it.
        UserError: the workers cannot start.
    """
    assert isinstance(study.directory, Path) and isinstance(study.store, LocalStore)
    workers.wait_for_the_last(study.directory)
    take_up(study)
    # The service has the database from here on; this process only looks.
    coordinator = StudyCoordinator(study.store, lease_seconds, workers_may_live=False)
    token, name = secrets.token_urlsafe(32), study.store.name

    def only(study: str) -> StudyCoordinator:
        if study != name:
            raise RequestRejectedError('missing', f'there is no study {study!r} here')
        return coordinator

    with Server(only, token=token) as server:
        service = Service(f'127.0.0.1:{server.port}', name, token)
        _supervise(study, how, service, callbacks, should_interrupt)


def join(
    study: Study,
    how: Workers,
    service: Service,
    callbacks: Sequence[Callback] = (),
    should_interrupt: Callable[[], bool] = lambda: False,
) -> None:
    """Runs trials of a study that a service keeps, among the workers of other machines.

    Trials that another machine has lost go on from their checkpoints where both write to one
    directory, on a network file system or in a store; else they start again.

    Args:
        study: kept by the service.
        how: the workers of this machine.
        service: that keeps it.
        callbacks: what listens. They hear of all trials, whoever runs them.
        should_interrupt: asked often; on True the workers save, and end.

    Raises:
        Paused: it goes on in a later call.
        StudyStoppedError: an error stops it.
        UserError: the workers cannot start.
    """
    take_up(study)
    _supervise(study, how, service, callbacks, should_interrupt)


def _home(study: Study, service: Service) -> Path:
    """What workers append to, lock or tail is on this machine, whatever their trials write to."""
    assert study.directory is not None
    if isinstance(study.directory, Path):
        return study.directory
    home = Path('runs') / re.sub(r'[^A-Za-z0-9._-]+', '_', service.study)
    logging.warning('The logs of workers are in %s, since logs cannot grow in a store', home / LOGS)
    return home


def _supervise(
    study: Study,
    how: Workers,
    service: Service,
    callbacks: Sequence[Callback],
    should_interrupt: Callable[[], bool],
) -> None:
    assert study.directory is not None
    client = service.client()
    supervisor = workers.Supervisor(
        client,
        study.directory,
        _home(study, service),
        how.count,
        sorted({*workers.modules_of(study.value), *how.modules}),
        token=service.token,
        tls_flags=service.worker_flags,
        memory_bytes=None if how.memory_gb is None else int(how.memory_gb * 2**30),
        max_attempts=study.search.max_attempts,
    )
    for callback in callbacks:
        callback.on_study_start(study)
    watcher = Watcher(study, callbacks)
    try:
        supervisor.run(should_interrupt, watcher.look)
        watcher.look()
    except (workers.WorkerError, DetachedError) as error:
        raise StudyStoppedError(str(error)) from None
    finally:
        client.close()
        for callback in callbacks:
            callback.on_study_end(study)
    if not study.is_done:
        asked = INTERRUPTED if should_interrupt() else 'python -m paxtune.studies stop asked for it'
        raise Paused(asked)
