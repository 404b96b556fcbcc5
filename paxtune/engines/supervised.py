"""Workers of this machine, supervised until the study is done."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import logging

from paxtune.running.callbacks import Callback
from paxtune.running.event_poller import Watcher
from paxtune.running.json_logs import LOGS
from paxtune.running.supervisor import Supervisor, WorkerError, modules_of
from paxtune.running.tuner import INTERRUPTED, Paused, StudyStoppedError
from paxtune.service.address import Service
from paxtune.study.study import Study
from paxtune.study.transitions import DetachedError
from trainer.symbolic.errors import UserError


@dataclasses.dataclass(frozen=True)
class WorkerConfig:
    """Configuration of the workers of this machine.

    Attributes:
        count: the number of workers.
        memory_gb: the resident memory, in GiB, beyond which a worker is ended, and its trial run
            again; None for no limit.
        modules: imported by workers, beside those of the experiment's classes.
    """

    count: int = 1
    memory_gb: float | None = None
    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f'--workers={self.count}: expected at least 1')
        if self.memory_gb is not None and not self.memory_gb > 0:
            raise UserError(f'--worker_memory={self.memory_gb}: expected more than 0 (GiB)')


def _home(study: Study, service: Service) -> Path:
    """Returns a local directory for logs and locks, wherever trials write to."""
    assert study.directory is not None
    if isinstance(study.directory, Path):
        return study.directory
    home = Path('runs') / re.sub(r'[^A-Za-z0-9._-]+', '_', service.study)
    logging.warning('The logs of workers are in %s, since logs cannot grow in a store', home / LOGS)
    return home


def supervise(
    study: Study,
    config: WorkerConfig,
    service: Service,
    callbacks: Sequence[Callback],
    should_interrupt: Callable[[], bool],
) -> None:
    """Runs trials of a study that a service keeps, until it is done.

    Args:
        study: kept by the service.
        config: of the workers.
        service: keeps the study.
        callbacks: listen to all trials of the study.
        should_interrupt: asked often; on True the workers save, and end.

    Raises:
        Paused: the study continues in a later call.
        StudyStoppedError: an error stops it.
        UserError: the workers cannot start.
    """
    assert study.directory is not None
    client = service.client()
    supervisor = Supervisor(
        client,
        study.directory,
        _home(study, service),
        config.count,
        sorted({*modules_of(study.value), *config.modules}),
        token=service.token,
        tls_flags=service.worker_flags,
        memory_bytes=None if config.memory_gb is None else int(config.memory_gb * 2**30),
        max_attempts=study.search.faults.max_attempts,
    )
    for callback in callbacks:
        callback.on_study_start(study)
    watcher = Watcher(study, callbacks)
    try:
        supervisor.run(should_interrupt, watcher.look)
        watcher.look()
    except (WorkerError, DetachedError) as error:
        raise StudyStoppedError(str(error)) from None
    finally:
        client.close()
        for callback in callbacks:
            callback.on_study_end(study)
    if not study.is_done:
        asked = INTERRUPTED if should_interrupt() else 'python -m paxtune.studies stop asked for it'
        raise Paused(asked)
