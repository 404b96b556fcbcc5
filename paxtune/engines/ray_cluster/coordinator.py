import contextlib
import threading
import time
import warnings
from pathlib import Path

import ray

from paxtune.engines.network_service import FOLDER, network_service
from paxtune.engines.ray_cluster.crew import NAMESPACE, Crew, Outcome
from paxtune.engines.ray_cluster.group import Group
from paxtune.service import tokens
from paxtune.service.address import Service
from paxtune.storage.study_file import DATABASE
from trainer.symbolic.errors import UserError

_CREW = 'ray_crew.json'

_ALONE_SECONDS = 120.0
"""Time after which the coordinator of a finished study ends itself, if no driver asks for it."""


class Coordinator:
    """An actor that keeps a study and its workers, whether or not a driver lives.

    Ray starts it again after a crash, on the node of its study. Its workers end with it, and
    begin again.
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
        self._crew: Crew | None = None
        self._groups: list[Group] = []
        self._leaving = threading.Event()
        self._asked = time.monotonic()
        if _is_restarted():
            if not (self._directory / DATABASE).exists():
                raise UserError(f'{directory}: the study is not on this node')
            self.serve()
            if self._kept.exists():
                self.start(Crew.from_json(self._kept.read_text()))

    @property
    def _kept(self) -> Path:
        return self._directory / FOLDER / _CREW

    def serve(self) -> Service:
        """Returns the service of the study, and starts it first if need be.

        Raises:
            UserError: another process works in the directory.
        """
        if self._service is None:
            host = ray.util.get_node_ip_address()
            serving = network_service(self._directory, self._lease_seconds, host)
            self._service = self._held.enter_context(serving)
        return self._service

    def start(self, crew: Crew) -> None:
        """Starts workers. Those that run already go on, if they are equal; others save and end."""
        if self._running and crew == self._crew and not self._leaving.is_set():
            return
        self._end_workers()
        tokens.write_private(self._kept, crew.to_json())
        self._crew, self._leaving, self._asked = crew, threading.Event(), time.monotonic()
        self._groups = [
            Group(crew, i, f'{self._name}-{i + 1}', self._connection, self._leaving)
            for i in range(crew.count)
        ]
        for group in self._groups:
            group.start()
        threading.Thread(target=self._end_alone, daemon=True).start()

    def state(self) -> tuple[int, Outcome]:
        """Returns the number of running workers, and the first error, or `Outcome(0)`."""
        self._asked = time.monotonic()
        ended = [group.outcome for group in self._groups if group.outcome is not None]
        return self._running, next((each for each in ended if each.code), Outcome(0))

    def leave(self) -> None:
        """Lets the workers save their trials and end."""
        self._leaving.set()

    def end(self) -> None:
        """Ends the workers and the service."""
        self._end_workers()
        self._kept.unlink(missing_ok=True)
        self._held.close()
        self._service = None

    @property
    def _running(self) -> int:
        return sum(group.is_alive() for group in self._groups)

    def _end_workers(self) -> None:
        self._leaving.set()
        for group in self._groups:
            group.join()

    def _connection(self) -> tuple[Service, str]:
        service = self.serve()
        assert service.tls_ca is not None
        return service, service.tls_ca.read_text()

    def _end_alone(self) -> None:
        groups = self._groups
        while self._running or time.monotonic() - self._asked < _ALONE_SECONDS:
            time.sleep(1.0)
            if self._groups is not groups:
                return
        self.end()
        ray.kill(ray.get_actor(self._name, NAMESPACE))


def _is_restarted() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # It calls a method of Ray that Ray deprecates.
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)
