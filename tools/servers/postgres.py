"""A PostgreSQL server of one's own, from the `pgserver` wheel, for tests and benchmarks.

    with PostgresServer.started() as server:
        database = Database(server.new_database())
        server.restart()

It listens on a free port of the loopback device, wants a password, and leaves nothing behind.
PostgreSQL refuses to run as root, so there it runs as `nobody`, from a copy of the wheel's files
that this user can read.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from tools.servers.ports import unused_port

USER = 'paxtune'
PASSWORD = 'not-a-secret'
_PATIENCE = 60.0


class PostgresMissingError(Exception):
    """No server can be started on this machine."""


class PostgresServer:
    """A server. Its databases outlive a restart.

    Attributes:
        port: of 127.0.0.1, the same after a restart.
    """

    def __init__(self, directory: Path, is_durable: bool) -> None:
        """Makes a server that is not running yet.

        Args:
            directory: an empty one, for its files; the user `nobody` can get there.
            is_durable: what is committed outlives a power cut, too, which takes time.

        Raises:
            PostgresMissingError: no server can be started on this machine.
        """
        self._process: subprocess.Popen[bytes] | None = None
        self._fsync = 'on' if is_durable else 'off'
        self._directory = directory
        self._data = directory / 'data'
        self._log = directory / 'log'
        packages = _packages()
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam('nobody')
            self._as = {'user': nobody.pw_uid, 'group': nobody.pw_gid, 'extra_groups': []}
            os.chown(directory, nobody.pw_uid, nobody.pw_gid)
            for part in ('pgserver/pginstall', 'pgserver.libs'):
                shutil.copytree(packages / part, directory / part)
            packages = directory
        self._programs = packages / 'pgserver/pginstall/bin'
        password = directory / 'password'
        password.write_text(PASSWORD)
        self._run(
            'initdb',
            f'--pgdata={self._data}',
            f'--username={USER}',
            f'--pwfile={password}',
            '--auth=scram-sha-256',
            '--encoding=UTF8',
            '--no-locale',
            '--no-sync',
        )
        self.port = unused_port()

    @classmethod
    @contextlib.contextmanager
    def started(cls, is_durable: bool = False) -> Iterator['PostgresServer']:
        """A server that runs, and is removed at the end.

        Args:
            is_durable: what is committed outlives a power cut, too, which takes time. Restarts,
                and crashes of the server alone, it outlives either way.

        Raises:
            PostgresMissingError: no server can be started on this machine.
        """
        directory = Path(tempfile.mkdtemp(prefix='postgres'))
        try:
            server = cls(directory, is_durable)
            try:
                server.start()
                yield server
            finally:
                server.stop(crash=True)
        finally:
            shutil.rmtree(directory)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        try:
            done = subprocess.run(
                command, cwd='/', capture_output=True, text=True, check=False, **self._as
            )
        except OSError as error:
            raise PostgresMissingError(f'{program} cannot be run: {error}') from error
        if done.returncode != 0:
            raise PostgresMissingError(f'{program} failed: {done.stderr or done.stdout}')

    def start(self) -> None:
        """Starts it, and waits until it can be used.

        Raises:
            PostgresMissingError: it does not start.
        """
        command = [
            str(self._programs / 'postgres'),
            *('-D', str(self._data), '-p', str(self.port)),
            *('-c', 'listen_addresses=127.0.0.1', '-c', 'unix_socket_directories='),
            *('-c', f'fsync={self._fsync}'),
        ]
        with open(self._log, 'ab') as log:
            self._process = subprocess.Popen(
                command,
                cwd='/',
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is not for the server.
                **self._as,
            )
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._connect().close()
                return
            except psycopg.OperationalError:
                ended = self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    self.stop(crash=True)
                    raise PostgresMissingError(self._log.read_text()) from None
                time.sleep(0.02)

    def stop(self, crash: bool = False) -> None:
        """Stops it, so that all connections are lost; nothing where it does not run.

        Args:
            crash: without a word to its clients or its files, as if the machine had died.
        """
        if self._process is None:
            return
        # SIGQUIT ends its children, which a SIGKILL of the server itself would leave behind.
        self._process.send_signal(signal.SIGQUIT if crash else signal.SIGINT)
        self._process.wait(_PATIENCE)
        self._process = None

    def restart(self, crash: bool = False) -> None:
        """Stops and starts it."""
        self.stop(crash)
        self.start()

    def url(self, database: str) -> str:
        """The URL of a database of this server, with the password."""
        return f'postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}'

    def new_database(self) -> str:
        """The URL of another database, which is empty."""
        with contextlib.closing(self._connect()) as connection:
            name = f'another{len(_all(connection, "SELECT 1 FROM pg_database"))}'
            connection.execute(f'CREATE DATABASE {name}'.encode())
        return self.url(name)

    def emptied_database(self) -> str:
        """The URL of the one database for tests, emptied: many take seconds to remove."""
        with contextlib.closing(self._connect()) as connection:
            if not _all(connection, "SELECT 1 FROM pg_database WHERE datname = 'tests'"):
                connection.execute('CREATE DATABASE tests')
            # What a test that failed has left open.
            _all(
                connection,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'tests'",
            )
        with contextlib.closing(self._connect('tests')) as connection:
            connection.execute('DROP SCHEMA public CASCADE')
            connection.execute('CREATE SCHEMA public')
        return self.url('tests')

    def _connect(self, database: str = 'postgres') -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), autocommit=True)


def _all(connection: psycopg.Connection[Any], query: LiteralString) -> list[Any]:
    return connection.execute(query).fetchall()


def _packages() -> Path:
    """The directory where packages are installed, `pgserver` among them."""
    spec = importlib.util.find_spec('pgserver')
    if spec is None or spec.origin is None:
        raise PostgresMissingError('pgserver is not installed: pip install -e .[dev]')
    return Path(spec.origin).parents[1]
