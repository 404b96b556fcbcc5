"""Service of one study for workers on other machines, inside the process that leads a search."""

import contextlib
import ipaddress
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from absl import logging

from paxtune.service import auth, tokens
from paxtune.service.address import Service
from paxtune.service.certificates import self_signed
from paxtune.service.leases import LEASE_SECONDS
from paxtune.service.registry import DatabaseStudies
from paxtune.service.server import Server
from paxtune.service.tokens import Token
from paxtune.storage.database import Database
from paxtune.storage.study_file import DATABASE
from trainer.runtime import directory as directories
from trainer.symbolic.errors import UserError

FOLDER = 'service'
"""The folder in a study's directory with the address and secrets for workers, for its user only."""

_STUDY = 'study'


@contextlib.contextmanager
def network_service(
    directory: Path, lease_seconds: float = LEASE_SECONDS, host: str | None = None
) -> Iterator[Service]:
    """Serves the study of a directory while entered, with TLS and a token of its own.

    Another start on the same host has the same certificate, token and, if it is free, port. So
    workers that live may continue.

    Args:
        directory: of the study, on a local disk of this machine. It is locked.
        lease_seconds: the time that a worker may pass without a heartbeat.
        host: the name or the address by which workers reach this machine; its name by default.

    Raises:
        UserError: another process works in the directory, or the service cannot start.
    """
    host = socket.gethostname() if host is None else host
    directories.create(directory)
    with contextlib.closing(Database(directory / DATABASE)) as database:
        database.hold()
        folder = directory / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        port, secret, tls = _kept(folder, host)
        studies = DatabaseStudies(database, lease_seconds)

        def server(port: int) -> Server:
            return Server(
                studies,
                host if _is_address(host) else '0.0.0.0',
                port,
                tokens=[Token(secret, prefix=_STUDY)],
                tls=tls,
                is_ready=studies.look,
            )

        serving = server(port)
        try:
            serving.start()
        except UserError as error:  # Another process has the port.
            logging.warning('%s', error)
            serving = server(0)
            serving.start()
        try:
            endpoint = auth.address(host, serving.port)
            tokens.write_private(folder / 'endpoint', endpoint)
            yield Service(endpoint, _STUDY, secret, tls=True, tls_ca=tls[0])
        finally:
            serving.stop()


def kept_service(directory: Path) -> Service:
    """Returns the service of a directory's study, for a worker that sees the directory.

    Raises:
        UserError: none has been started there.
    """
    folder = directory / FOLDER
    endpoint, secret = (tokens.read_private(folder / name) for name in ('endpoint', 'token'))
    if endpoint is None or secret is None:
        raise UserError(f'{folder}: the files of a service are missing, or others can read them')
    certificate = folder / 'certificate.pem'
    return Service(endpoint.strip(), _STUDY, secret.strip(), tls=True, tls_ca=certificate)


def _kept(folder: Path, host: str) -> tuple[int, str, tuple[Path, Path]]:
    """Returns the port, the token and the files of the certificate; makes missing ones."""
    certificate, key, token = folder / 'certificate.pem', folder / 'key.pem', folder / 'token'
    last_host, _, port = (tokens.read_private(folder / 'endpoint') or '').rpartition(':')
    kept = [tokens.read_private(file) for file in (certificate, key, token)]
    if last_host.strip('[]') != host or None in kept:
        port = '0'
        for file, content in zip((certificate, key), self_signed(host), strict=True):
            tokens.write_private(file, content.decode())
        tokens.write_private(token, secrets.token_urlsafe(32))
    secret = tokens.read_private(token)
    assert secret is not None
    return int(port), secret, (certificate, key)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
