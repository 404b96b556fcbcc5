"""Workers of this machine, supervised until the study is done."""

import dataclasses
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from absl import logging

from paxtune.engines.base import Job, require_counts
from paxtune.running.event_poller import Watcher
from paxtune.running.json_logs import LOGS
from paxtune.running.supervisor import Supervisor, WorkerError, modules_of
from paxtune.running.trial_errors import StudyStoppedError
from paxtune.running.tuner import INTERRUPTED, STOP_REQUESTED, Paused
from paxtune.service.address import Service
from paxtune.study.redefinition import fingerprint
from paxtune.study.study import Study
from paxtune.study.transitions import DetachedError
from trainer.symbolic.errors import UserError
from trainer.symbolic.plain_numbers import plain


@dataclasses.dataclass(frozen=True)
class WorkerConfig:
    """Configuration of the workers of this machine.

    Attributes:
        count: the number of workers.
        memory_gb: the resident memory, in GiB, beyond which a worker is ended, and its trial run
            again; None for no limit.
        modules: imported by workers, beside those of the experiment's classes.
        pack: the number of trials that each worker trains at a time, as one program where their
            programs have the same structure: see `paxtune.Packed`.
    """

    count: int = 1
    memory_gb: float | None = None
    modules: tuple[str, ...] = ()
    pack: int = dataclasses.field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        require_counts(self, 'count', 'pack')
        memory = plain(self.memory_gb)
        if memory is not None and not (isinstance(memory, int | float) and memory > 0):
            where = f'{type(self).__name__}.memory_gb (--worker_memory)'
            raise UserError(f'{where}: expected a number above 0, not {memory!r}')

    @property
    def memory_bytes(self) -> int | None:
        """The resident memory beyond which a worker is ended."""
        return None if self.memory_gb is None else int(self.memory_gb * 2**30)

    @property
    def trials_at_once(self) -> int:
        """The number of trials that all workers run at a time."""
        return self.count * self.pack

    @property
    def trials_per_process(self) -> int:
        """The number of them in each worker."""
        return self.pack

    @property
    def pack_label(self) -> str:
        """The rest of a description: how many trials each worker has; '' for one."""
        return '' if self.pack == 1 else f', each with {self.pack} trials at a time'

    def flags(self, job: Job) -> tuple[str, ...]:
        """Returns the flags of `paxtune.worker` that a study's search gives to all its workers."""
        own = job.runner.worker_arguments(fingerprint(job.study.record))
        return dataclasses.replace(own, pack=self.pack).flags()

    def imports(self, job: Job) -> tuple[str, ...]:
        """Returns the modules that workers of a study import."""
        has_script = bool(job.runner.worker_arguments('').argv)
        return tuple(sorted({*modules_of(job.study.value, has_script), *self.modules}))


def require_one_process(count: int) -> None:
    """Raises UserError where packed trials would be trained by several processes together."""
    if count > 1:
        raise UserError('--pack: several processes train one trial at a time')


def directory_or_temporary(given: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    """Returns a directory for logs and trials, where a study of a function was given none."""
    if given is None:
        given = tempfile.mkdtemp(prefix='paxtune-')
        logging.warning('Without a job_log_dir, the trials are in %s', given)
    return given


def _home(study: Study, service: Service) -> Path:
    """Returns a local directory for logs and locks, wherever trials write to."""
    assert study.directory is not None
    if isinstance(study.directory, Path):
        return study.directory
    home = Path('runs') / re.sub(r'[^A-Za-z0-9._-]+', '_', service.study)
    logging.warning('The logs of workers are in %s, since logs cannot grow in a store', home / LOGS)
    return home


def supervise(job: Job, config: WorkerConfig, service: Service) -> None:
    """Runs the trials of a study in workers, until it is done: see `Engine.run`.

    Args:
        job: its callbacks listen to all trials of the study.
        config: of the workers.
        service: keeps the study.
    """
    study = job.study
    assert study.directory is not None
    client = service.client()
    supervisor = Supervisor(
        client,
        study.directory,
        _home(study, service),
        config.count,
        config.imports(job),
        token=service.token,
        flags=[*config.flags(job), *service.worker_flags],
        memory_bytes=config.memory_bytes,
        max_attempts=study.search.faults.max_attempts,
    )
    try:
        watched(job, lambda look: supervisor.run(job.should_interrupt, look))
    finally:
        client.close()


def watched(job: Job, run: Callable[[Callable[[], None]], None]) -> None:
    """Runs the trials of a study in other processes: see `Engine.run`.

    Args:
        job: its callbacks listen to all trials of the study.
        run: returns when the workers have ended. It calls its argument about once a second.
    """
    study, callbacks = job.study, job.callbacks
    for callback in callbacks:
        callback.on_study_start(study)
    watcher = Watcher(study, callbacks)
    try:
        run(watcher.look)
        watcher.look()
    except (WorkerError, DetachedError) as error:
        raise StudyStoppedError(str(error)) from None
    finally:
        for callback in callbacks:
            callback.on_study_end(study)
    if not study.is_done:
        raise Paused(INTERRUPTED if job.should_interrupt() else STOP_REQUESTED)
