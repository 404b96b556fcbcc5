import dataclasses
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import ray

from paxtune.engines.cluster_worker import ClusterWorker, Outcome
from paxtune.running.supervisor import log_file
from paxtune.service.address import Service

_MAX_FORWARDED_BYTES = 2**16


class Member:
    """An actor with one process of a worker, on the resources that Ray has given it.

    The process is one of its own: a crash, a hang or too much memory ends that, and not the actor.
    """

    def __init__(self) -> None:
        self._leaving = threading.Event()

    def address(self) -> str:
        """Returns host:port, free now, where processes of one worker can find each other."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as taken:
            taken.bind(('', 0))
            return f'{host}:{taken.getsockname()[1]}'

    def run(
        self,
        worker: ClusterWorker,
        number: int,
        service: Service,
        certificate: str,
        joining: Sequence[str],
    ) -> Outcome:
        """Runs the process until the study is done, or `leave`.

        Args:
            worker, number, service, joining: as for `ClusterWorker.run`.
            certificate: of the service, PEM.
        """
        with tempfile.TemporaryDirectory() as scratch:
            authority = Path(scratch) / 'certificate.pem'
            authority.write_text(certificate)
            service = dataclasses.replace(service, tls_ca=authority)
            output = _Output(log_file(Path(worker.directory), number))
            try:
                return worker.run(service, number, self._leaving.is_set, joining, output.forward)
            finally:
                output.forward()

    def leave(self) -> None:
        """Lets the process save its trial and end."""
        self._leaving.set()


class _Output:
    """Forwards the output of a process; Ray prints the output of an actor at the driver."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = log.stat().st_size if log.exists() else 0

    def forward(self) -> None:
        if not self._log.exists():
            return
        with open(self._log, 'rb') as file:
            end = file.seek(0, 2)
            self._read = file.seek(max(self._read, end - _MAX_FORWARDED_BYTES))
            text = file.read(end - self._read)
        self._read += len(text)
        sys.stdout.write(text.decode(errors='replace'))
        sys.stdout.flush()
