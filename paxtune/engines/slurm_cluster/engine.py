"""Workers as jobs of a SLURM cluster."""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from paxtune.engines.base import Job
from paxtune.engines.cluster import Cluster
from paxtune.engines.cluster_worker import ClusterWorker
from paxtune.engines.job_keeper import JobKeeper
from paxtune.engines.network_service import network_service
from paxtune.engines.slurm_cluster import options
from paxtune.engines.slurm_cluster.job_queue import JobQueue
from paxtune.service.address import Service

_LOOK_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class Slurm(Cluster):
    """Runs the trials in workers that are jobs of a SLURM cluster. Any of them may end.

    This process serves the study to them, on a machine that they can reach. If it dies, the same
    call finds the jobs again. All nodes need the directory.

    Attributes:
        options: of `sbatch`, by name; `time` is needed. The tasks of several `nodes`, or of several
            `ntasks-per-node`, train each trial together.
    """

    extra, library = 'slurm', 'submitit'

    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        options.checked(self.options)
        super().__post_init__()

    @property
    def processes_per_worker(self) -> int:
        return options.processes(self.options)

    @property
    def description(self) -> str:
        return f'in {self.count} workers, as jobs of SLURM{self.pack_label}'

    def serve(self, directory: Path) -> AbstractContextManager[Service]:
        return network_service(directory, self.lease_seconds)

    def keep(self, job: Job, worker: ClusterWorker, look: Callable[[], None]) -> None:
        study, name = job.study, f'paxtune-{job.study.record.uuid[:12]}'
        queue = JobQueue(Path(worker.directory), name, self.options, worker)

        def measurements() -> int:
            return sum(len(trial.measurements) for trial in study.trials)

        keeper = JobKeeper(queue, self.count, queue.folder, _LOOK_SECONDS)
        keeper.run(job.should_interrupt, look, lambda: study.is_done, measurements)
