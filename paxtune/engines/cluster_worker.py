"""One process of a worker on a cluster: its configuration, and its end."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from paxtune.engines.base import Job
from paxtune.engines.supervised import WorkerConfig
from paxtune.running.supervisor import DETACHED, STOPPED, Supervisor, WorkerError
from paxtune.service.address import Service
from paxtune.study.transitions import DetachedError
from trainer.runtime.directory import job_path
from trainer.symbolic.errors import UserError

_PATIENCE = 120.0


class Outcome(NamedTuple):
    """The end of a worker.

    Attributes:
        code: an exit code of `paxtune.worker`; 0 where there are no more trials.
        message: of an error.
        is_false_start: True if the worker ended before it had a trial.
    """

    code: int
    message: str = ''
    is_false_start: bool = False

    def require_success(self) -> None:
        """Raises the error that ended the worker, if one did."""
        if self.code == 2:
            raise UserError(self.message)
        if self.code:
            raise WorkerError(self.message)


def caught_outcome(run: Callable[[], Outcome]) -> Outcome:
    """Calls `run`, and returns the outcome where it raises an error of a supervisor."""
    try:
        return run()
    except UserError as error:
        return Outcome(2, str(error))
    except WorkerError as error:
        return Outcome(STOPPED, str(error))
    except DetachedError as error:
        return Outcome(DETACHED, str(error))


@dataclasses.dataclass(frozen=True)
class ClusterWorker:
    """The workers of a study on a cluster: plain data, which travels to their nodes.

    Attributes:
        directory: of the study, on each node.
        modules: imported by workers, as they define the classes of the experiment.
        flags: further flags of workers.
        memory_bytes: the resident memory beyond which a process is ended; None for no limit.
        max_attempts: of a trial: see `paxtune.study.transitions.lose`.
        processes: the number of processes of a worker, which train its trials together.
    """

    directory: str
    modules: tuple[str, ...]
    flags: tuple[str, ...]
    memory_bytes: int | None
    max_attempts: int
    processes: int = 1

    @classmethod
    def of(cls, job: Job, config: WorkerConfig, processes: int) -> 'ClusterWorker':
        """Makes the workers of an open study."""
        study = job.study
        assert isinstance(study.directory, Path)
        return cls(
            str(study.directory.absolute()),
            config.imports(job),
            config.flags(job),
            config.memory_bytes,
            study.search.faults.max_attempts,
            processes,
        )

    def run(
        self,
        service: Service,
        number: int,
        is_leaving: Callable[[], bool],
        joining: Sequence[str] = (),
        look: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Runs one process, kept by a supervisor, until the study is done.

        Args:
            service: keeps the study.
            number: of the process, in the names of logs; no other process of the study has it.
            is_leaving: asked often; on True the trial is saved.
            joining: flags that join the processes of one worker. Such a process ends with others,
                and is not started again.
            look: called about once a second.
        """
        with contextlib.closing(service.client()) as client:
            try:
                client.connect(_PATIENCE)
            except UserError as error:  # The search has ended; when it is back, it starts workers.
                return Outcome(DETACHED, str(error), True)
            kept = Supervisor(
                client,
                job_path(self.directory),
                Path(self.directory),
                1,
                self.modules,
                token=service.token,
                flags=[*self.flags, *service.worker_flags, *joining],
                memory_bytes=self.memory_bytes,
                max_attempts=self.max_attempts,
                first=number,
                restarts=not joining,
            )

            def run() -> Outcome:
                kept.run(is_leaving, look)
                return Outcome(0 if kept.is_done else DETACHED, '', kept.false_starts > 0)

            return caught_outcome(run)
