"""Differences between SQLite and PostgreSQL."""

import contextlib
import os
import sqlite3
import urllib.parse
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import sqlalchemy

from paxtune.storage.study_file import DATABASE
from trainer.runtime.directory import LOCK_FILE, lock
from trainer.symbolic import extras
from trainer.symbolic.errors import UserError

WAIT = 60.0
PATIENCE = 2.0  # A server takes a moment to miss a dead client.


class DatabaseUnavailableError(Exception):
    """The database cannot be reached now, or the connection to it was lost."""


Reading: TypeAlias = Callable[[], contextlib.AbstractContextManager[sqlalchemy.Connection]]


class Sqlite:
    """An SQLite database: a file, or in memory.

    Attributes:
        exclusive: the statement that begins a transaction, alone among all that write.
        ping: the statement that finds a lost connection before a read; '' where none can be lost.
        display_name: the name of the database in messages, without a password.
    """

    exclusive, ping = 'BEGIN IMMEDIATE', ''

    def __init__(self, path: Path | None, read_only: bool, wait: float) -> None:
        self.display_name = 'memory' if path is None else str(path)
        self._path, self._waiting = path, {'timeout': wait}
        self._read_only = read_only
        self._memory = f'file:{uuid.uuid4()}?mode=memory&cache=shared'
        self._anchor: sqlite3.Connection | None = None
        self._lock: int | None = None

    def engine(self) -> sqlalchemy.Engine:
        """Makes the engine, which has one connection, made when it is first used."""
        if self._path is not None:
            _require_own_files(self._path, self._read_only)
        else:
            # SQLAlchemy closes a connection that Ctrl-C interrupts. This one keeps the memory.
            self._anchor = sqlite3.connect(self._memory, uri=True, check_same_thread=False)
        engine = sqlalchemy.create_engine(
            self._url(),
            # The driver's own transactions would let others write between a read and a write.
            connect_args={'check_same_thread': False, 'isolation_level': None} | self._waiting,
            poolclass=sqlalchemy.StaticPool,
            hide_parameters=True,
        )
        # A journal whose deletion a power cut undoes would take an acknowledged commit back: EXTRA
        # also writes the directory.
        pragma = 'query_only = ON' if self._read_only else 'synchronous = EXTRA'
        sqlalchemy.event.listen(engine, 'connect', lambda to, _: to.execute(f'PRAGMA {pragma}'))
        return engine

    def _url(self) -> sqlalchemy.URL:
        if self._path is None:
            return sqlalchemy.make_url(f'sqlite:///{self._memory}&uri=true')
        if not self._read_only:
            return sqlalchemy.URL.create('sqlite', database=str(self._path))
        database = 'file:' + urllib.parse.quote(str(self._path.absolute()))
        # Not 'ro': SQLite rolls back an interrupted write before it reads.
        query = {'mode': 'rw', 'uri': 'true'}
        return sqlalchemy.URL.create('sqlite', database=database, query=query)

    def version(self, reading: Reading) -> int:
        """As `Database.version`; `reading` begins a read."""
        with reading() as connection:
            return int(connection.exec_driver_sql('PRAGMA data_version').scalar_one())

    def hold(self, connection: sqlalchemy.Connection) -> None:
        """As `Database.hold`."""
        if self._path is None or self._lock is not None:
            return
        path = self._path.resolve()
        # A process that writes to a study locks its directory.
        name = LOCK_FILE if path.name == DATABASE else f'{path.name}.service'
        try:
            self._lock = lock(path.with_name(name))
        except BlockingIOError:
            raise UserError(_held_by_another(self.display_name)) from None

    def release(self) -> None:
        """Releases the lock of `hold`."""
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_passing(self, error: Any) -> bool:
        """Returns True if an OperationalError of the driver is temporary."""
        # SQLITE_ERROR is an invalid statement, such as an unknown column.
        return bool(error.sqlite_errorcode != sqlite3.SQLITE_ERROR)

    def reason(self, error: Exception) -> str:
        """Renders an error of the driver for people."""
        return str(getattr(error, 'orig', error))


_SUPER_JOURNAL = bytes.fromhex('d9d505f920a163d7')


def _require_own_files(path: Path, read_only: bool) -> None:
    """Raises UserError where to open a file would change, or delete, files elsewhere.

    A journal may end with the path of another file, and SQLite deletes that one. Journals of
    transactions in one database, such as ours, do not.
    """
    if not read_only and path.name == DATABASE and path.is_symlink():
        raise UserError(f'{path} is a symbolic link: name the directory that it leads to')
    real = path.resolve()
    for file in (real.with_name(real.name + each) for each in ('-journal', '-wal', '-shm')):
        if file.is_symlink() or (file.is_file() and _last_bytes(file) == _SUPER_JOURNAL):
            raise UserError(f'{file} leads to another file, and was not written by a search')


def _last_bytes(file: Path) -> bytes:
    try:
        with open(file, 'rb') as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - len(_SUPER_JOURNAL)))
            return stream.read()
    except FileNotFoundError:  # The transaction of another process has ended.
        return b''


# Keys of advisory locks, which all programs of a database share.
_WRITING = 0x70617874756E65
_HELD = _WRITING + 1


class Postgres:
    """A database of a PostgreSQL server, with the methods of `Sqlite`."""

    # One round trip. The server releases the lock at the end of the transaction.
    exclusive, ping = f'BEGIN; SELECT pg_advisory_xact_lock({_WRITING})', 'SELECT 1'

    def __init__(self, url: sqlalchemy.URL, read_only: bool, wait: float, patience: float) -> None:
        place = (url.host, url.port, url.database)
        self.display_name = sqlalchemy.URL.create(
            'postgresql', url.username, None, *place
        ).render_as_string()
        self._url = url.set(drivername='postgresql+psycopg')
        self._read_only, self._wait, self._patience = read_only, wait, patience
        self._connections = self._unknown = 0
        self._is_held = False

    def engine(self) -> sqlalchemy.Engine:
        options = f'-c lock_timeout={self._wait}s'
        if self._read_only:
            options += ' -c default_transaction_read_only=on'
        arguments = {
            'autocommit': True,  # A read is one statement, and `exclusive` begins a transaction.
            'application_name': 'paxtune',
            'connect_timeout': '10',
            'options': options,
            # A server that is gone without a word is missed within half a minute.
            'keepalives_idle': '10',
            'keepalives_interval': '5',
            'keepalives_count': '4',
            'tcp_user_timeout': '30000',
        }
        with extras.needed('postgres', self.display_name):
            engine = sqlalchemy.create_engine(
                self._url,
                connect_args={k: v for k, v in arguments.items() if k not in self._url.query},
                poolclass=sqlalchemy.StaticPool,
                hide_parameters=True,
            )
        sqlalchemy.event.listen(engine, 'connect', self._connected)
        return engine

    def _connected(self, driver: Any, unused: object) -> None:
        # Another may have held the database, and written, while there was no connection.
        self._connections += 1
        try:
            if self._is_held and not _take(driver, self._patience):
                raise DatabaseUnavailableError(_held_by_another(self.display_name))
        except BaseException:
            driver.close()
            raise

    def version(self, reading: Reading) -> int:
        if not self._is_held:
            self._unknown -= 1
            return self._unknown
        return self._connections

    def hold(self, connection: sqlalchemy.Connection) -> None:
        if not self._is_held and not _take(connection.connection.driver_connection, self._patience):
            raise UserError(_held_by_another(self.display_name))
        self._is_held = True

    def release(self) -> None:
        self._is_held = False  # The server's lock went with the connection.

    def is_passing(self, error: Any) -> bool:
        return True

    def reason(self, error: Exception) -> str:
        text = ' '.join(str(getattr(error, 'orig', error)).split())
        for secret in (self._url.password, self._url.query.get('password')):
            text = text.replace(str(secret), '***') if secret else text
        return text


def _take(driver: Any, patience: float) -> bool:
    """Takes the lock, which the connection holds until it ends; returns True if it is taken."""
    # Imported here: where tornado is installed, as with Jupyter, it takes a sixth of a second.
    import tenacity

    def is_taken() -> bool:
        (taken,) = driver.execute(f'SELECT pg_try_advisory_lock({_HELD})').fetchone()
        return bool(taken)

    polling = tenacity.Retrying(
        retry=tenacity.retry_if_not_result(bool),
        stop=tenacity.stop_after_delay(patience),
        wait=tenacity.wait_fixed(0.05),
        retry_error_callback=lambda _: False,
    )
    return bool(polling(is_taken))


def _held_by_another(display_name: str) -> str:
    return f'{display_name}: another service, or a search, works with this database: stop that one'


def kind_of(
    where: Path | str | None, read_only: bool, wait: float = WAIT, patience: float = PATIENCE
) -> Sqlite | Postgres:
    """Finds the kind of a database; the arguments are those of `Database`.

    Raises:
        UserError: the URL does not belong to a supported database.

    Example:
        >>> kind_of('postgresql://me:secret@db.example.org/studies', False).display_name
        'postgresql://me@db.example.org/studies'
    """
    if not isinstance(where, str):
        return Sqlite(where, read_only, wait)
    known = 'expected sqlite:///PATH or postgresql://USER@HOST:PORT/DATABASE'
    try:
        url = sqlalchemy.make_url(where)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        # The text of the error may hold a piece of the password.
        raise UserError(f'the URL of the database cannot be read: {known}') from None
    if url.drivername == 'sqlite':
        if not url.database or url.database == ':memory:' or url.host or url.query:
            raise UserError(f'the URL of the database names no file: {known}')
        return Sqlite(Path(url.database), read_only, wait)
    if url.drivername in ('postgresql', 'postgresql+psycopg'):
        return Postgres(url, read_only, wait, patience)
    raise UserError(f'{url.drivername}: databases of this kind are not supported: {known}')
