import contextlib
import threading
import time
import warnings
from pathlib import Path

import ray

from paxtune.engines.cluster_worker import Outcome, caught_outcome
from paxtune.engines.job_keeper import JobKeeper
from paxtune.engines.network_service import FOLDER, network_service
from paxtune.engines.ray_cluster.jobs import RayJobs
from paxtune.engines.ray_cluster.worker_group import NAMESPACE, State, WorkerGroup
from paxtune.running.json_logs import LOGS
from paxtune.running.supervisor import STOPPED
from paxtune.service import tokens
from paxtune.service.address import Service
from paxtune.storage.study_file import DATABASE
from trainer.symbolic.errors import UserError

_WORKER_GROUP = 'ray_worker_group.json'

_LOOK_SECONDS = 0.5
_ALONE_LEASES = 4
"""Leases after which a coordinator without workers ends itself, if no driver asks for it."""


class Coordinator:
    """An actor that keeps a study and its workers, whether or not a driver lives.

    Ray starts it again after a crash, on the node of its study. Its workers end with it, and
    begin again. Without workers it ends itself, if no driver asks for it.
    """

    def __init__(self, directory: str, lease_seconds: float, name: str) -> None:
        """Does nothing yet, unless Ray starts the actor again.

        Args:
            directory: of the study.
            lease_seconds: the time that a worker may pass without a heartbeat.
            name: of this actor.
        """
        self._directory, self._lease_seconds, self._name = Path(directory), lease_seconds, name
        self._held = contextlib.ExitStack()
        self._service: Service | None = None
        self._group: WorkerGroup | None = None
        self._jobs: RayJobs | None = None
        self._keeping: threading.Thread | None = None
        self._end = Outcome(0)
        self._leaving = threading.Event()
        self._asked = time.monotonic()
        self._lock = threading.RLock()
        if _is_restarted():
            if not (self._directory / DATABASE).exists():
                raise UserError(f'{directory}: the study is not on this node')
            self.serve()
            if self._kept.exists():
                self.start(WorkerGroup.from_json(self._kept.read_text()))
        threading.Thread(target=self._end_alone, daemon=True).start()

    @property
    def _kept(self) -> Path:
        return self._directory / FOLDER / _WORKER_GROUP

    def serve(self) -> Service:
        """Returns the service of the study, and starts it first if need be.

        Raises:
            UserError: another process works in the directory.
        """
        with self._lock:
            self._asked = time.monotonic()
            if self._service is None:
                host = ray.util.get_node_ip_address()
                serving = network_service(self._directory, self._lease_seconds, host)
                self._service = self._held.enter_context(serving)
            return self._service

    def start(self, group: WorkerGroup) -> None:
        """Starts workers. Those that run already go on, if they are equal; others save and end."""
        with self._lock:
            service = self.serve()
            if self._is_running and group == self._group and not self._leaving.is_set():
                return
            self._end_workers()
            tokens.write_private(self._kept, group.to_json())
            self._group, self._leaving, self._end = group, threading.Event(), Outcome(0)
            assert service.tls_ca is not None
            self._jobs = RayJobs(group, self._name, service, service.tls_ca.read_text())
            self._keeping = threading.Thread(target=self._keep, args=(group, self._jobs))
            self._keeping.start()
            self._asked = time.monotonic()

    def state(self) -> State:
        """Returns the state of the workers."""
        self._asked = time.monotonic()
        is_running = self._is_running  # First: the end is known before it is over.
        return State(is_running, 0 if self._jobs is None else self._jobs.waiting, self._end)

    def leave(self) -> None:
        """Lets the workers save their trials and end."""
        self._leaving.set()

    def end(self) -> None:
        """Ends the workers and the service."""
        with self._lock:
            self._end_workers()
            self._kept.unlink(missing_ok=True)
            self._held.close()
            self._service = None

    @property
    def _is_running(self) -> bool:
        return self._keeping is not None and self._keeping.is_alive()

    def _keep(self, group: WorkerGroup, jobs: RayJobs) -> None:
        keeper = JobKeeper(jobs, group.count, self._directory / LOGS, _LOOK_SECONDS)

        def run() -> Outcome:
            keeper.run(self._leaving.is_set)
            return Outcome(0)

        try:
            self._end = caught_outcome(run)
        except Exception as error:
            self._end = Outcome(STOPPED, f'{type(error).__name__}: {error}')

    def _end_workers(self) -> None:
        self._leaving.set()
        if self._keeping is not None:
            self._keeping.join()

    def _end_alone(self) -> None:
        while True:
            time.sleep(1.0)
            with self._lock:
                alone = 0.0 if self._is_running else time.monotonic() - self._asked
                if alone > _ALONE_LEASES * self._lease_seconds:
                    self.end()
                    ray.kill(ray.get_actor(self._name, NAMESPACE))


def _is_restarted() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # It calls a method of Ray that Ray deprecates.
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)
