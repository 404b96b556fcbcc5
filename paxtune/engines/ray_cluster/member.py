import contextlib
import dataclasses
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import ray

from paxtune.engines.outcome import Outcome, outcome_of
from paxtune.engines.ray_cluster.worker_group import WorkerGroup
from paxtune.running import supervisor
from paxtune.running.supervisor import Supervisor
from paxtune.service.address import Service
from trainer.runtime.directory import job_path

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
        group: WorkerGroup,
        number: int,
        service: Service,
        certificate: str,
        joining: Sequence[str],
    ) -> Outcome:
        """Runs the process until the study is done, or `leave`.

        Args:
            number: of the process, from 1; no other of the group has it.
            service: keeps the study.
            certificate: of the service, PEM.
            joining: flags that join the processes of one worker. Such a process ends with others,
                and is not started again.
        """
        home = Path(group.directory)
        with contextlib.ExitStack() as stack:
            scratch = stack.enter_context(tempfile.TemporaryDirectory())
            authority = Path(scratch) / 'certificate.pem'
            authority.write_text(certificate)
            service = dataclasses.replace(service, tls_ca=authority)
            client = stack.enter_context(service.client())
            kept = Supervisor(
                client,
                job_path(group.directory),
                home,
                1,
                group.modules,
                token=service.token,
                flags=[*group.flags, *service.worker_flags, *joining],
                memory_bytes=group.memory_bytes,
                max_attempts=group.max_attempts,
                first=number,
                restarts=not joining,
            )
            output = _Output(supervisor.log_file(home, number))

            def run() -> Outcome:
                kept.run(self._leaving.is_set, output.forward)
                return Outcome(0 if kept.is_done else supervisor.DETACHED, '', kept.false_starts)

            try:
                return outcome_of(run)
            finally:
                output.forward()

    def leave(self) -> None:
        """Lets the process save its trial and end."""
        self._leaving.set()


class _Output:
    """Forwards what a process prints; Ray prints what an actor prints at the driver."""

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
