"""Where studies are kept: an SQLite file, the memory of this process, or PostgreSQL.

The tables have the schema of Vizier's own data store, which can read them.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.types import LargeBinary, String

from paxtune.storage.backends import DatabaseUnavailableError, kind_of
from paxtune.storage.study_file import how_to_recover
from paxtune.study.store import Journal
from trainer.symbolic.errors import UserError

__all__ = ['OWNER', 'Database', 'DatabaseUnavailableError', 'owners', 'studies', 'trials']

OWNER = 'paxtune'
"""The owner of the studies that paxtune makes, in Vizier's terms."""

_schema = sqlalchemy.MetaData()

owners = sqlalchemy.Table(
    'owners', _schema, sqlalchemy.Column('owner_name', String, primary_key=True)
)

# Vizier declares bytes as `String`: SQLite keeps them unchanged, PostgreSQL refuses them.
studies = sqlalchemy.Table(
    'studies',
    _schema,
    sqlalchemy.Column('study_name', String, primary_key=True),
    sqlalchemy.Column('owner_id', String),
    sqlalchemy.Column('study_id', String),
    sqlalchemy.Column('serialized_study', LargeBinary),
)

trials = sqlalchemy.Table(
    'trials',
    _schema,
    sqlalchemy.Column('trial_name', String, primary_key=True),
    sqlalchemy.Column('owner_id', String),
    sqlalchemy.Column('study_id', String),
    sqlalchemy.Column('trial_id', sqlalchemy.INTEGER),
    sqlalchemy.Column('serialized_trial', LargeBinary),
)

_by_number = sqlalchemy.Index(
    'trials_by_number', trials.c.owner_id, trials.c.study_id, trials.c.trial_id
)


class Database:
    """A database of studies.

    All calls share one connection, one thread at a time. The next call opens a lost connection
    again.

    Attributes:
        path: the SQLite file; None for a URL, and in memory.
        journals: the changes that this object has written, by the name of the study.

    Example:
        >>> database = Database(None)
        >>> database.studies()
        []
        >>> database.close()
    """

    def __init__(self, where: Path | str | None, read_only: bool = False, **waits: float) -> None:
        """Opens the database; its tables are made unless they are there.

        Args:
            where: an SQLite file, which is made if it is missing; or a URL, `sqlite:///runs/a.db`
                or `postgresql://user@host:5432/studies`; None keeps the studies in memory.
            read_only: writes nothing, since another process may be writing.
            waits: `wait`, seconds for the writes of another process, and `patience`, for `hold`.

        Raises:
            UserError: there is no such database, or it cannot be opened.
        """
        self._kind = kind_of(where, read_only, **waits)
        self.path = where if isinstance(where, Path) else None
        self.journals: dict[str, Journal] = {}
        self._lock = threading.RLock()
        self._read_only = read_only
        self._engine = self._kind.engine()
        self._operational_error: type[Exception] = (
            self._engine.dialect.loaded_dbapi.OperationalError
        )
        # The transaction of the thread that has the lock.
        self._open: sqlalchemy.Connection | None = None
        self._in_transaction = False
        try:
            self._make_tables()
        except (sqlalchemy.exc.DatabaseError, DatabaseUnavailableError) as error:
            self.close()
            reason = self._kind.reason(error)
            hint = how_to_recover(where.parent) if isinstance(where, Path) else ''
            raise UserError(f'{self} cannot be opened as a study: {reason}{hint}') from None

    def __str__(self) -> str:
        """Where it is, without a password."""
        return self._kind.display_name

    def _make_tables(self) -> None:
        with self.reading() as connection:
            inspector = sqlalchemy.inspect(connection)
            missing = {table.name for table in _schema.sorted_tables}
            missing -= set(inspector.get_table_names())
            is_indexed = not missing and inspector.has_index(trials.name, str(_by_number.name))
        if self._read_only:
            if missing:
                raise DatabaseUnavailableError(f'it has no table {min(missing)}')
        elif not is_indexed:
            with self.transaction() as connection:
                _schema.create_all(connection)
                # The table may be older than the index.
                _by_number.create(connection, checkfirst=True)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlalchemy.Connection]:
        """Begins a read. Inside a transaction it sees that transaction's writes.

        Raises:
            DatabaseUnavailableError: the database cannot be reached; the next call tries again.
        """
        with self._lock, self._errors():
            if self._open is not None:
                yield self._open
            else:
                with self._opened(self._kind.ping) as connection:
                    yield connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlalchemy.Connection]:
        """Begins a transaction: no other thread and no other process writes meanwhile.

        It is committed when the block ends, and rolled back if the block raises. A transaction
        inside another is a part of it: if the inner block raises, only its writes are rolled back.

        Raises:
            DatabaseUnavailableError: the database cannot be reached, or it was lost. Where it was
                lost in the last moment, it is unknown whether the writes were committed.
            UserError: the database was opened to be read only.
        """
        if self._read_only:
            raise UserError(
                'the study was opened to be read only: '
                'paxtune.load_study(directory, read_only=False)'
            )
        with self._lock, self._errors():
            if self._in_transaction:
                assert self._open is not None
                with self._open.begin_nested():
                    yield self._open
                return
            if self._open is not None:
                raise RuntimeError('a transaction cannot begin inside a block that only reads')
            with self._opened(self._kind.exclusive) as connection:
                self._in_transaction = True
                try:
                    yield connection
                    connection.commit()
                finally:
                    self._in_transaction = False

    @contextlib.contextmanager
    def _opened(self, first: str) -> Iterator[sqlalchemy.Connection]:
        # Closing it rolls back an uncommitted transaction.
        with self._connect(first) as connection:
            self._open = connection
            try:
                yield connection
            finally:
                self._open = None

    def _connect(self, first: str) -> sqlalchemy.Connection:
        connection = self._engine.connect()
        try:
            if first:
                connection.exec_driver_sql(first)
        except sqlalchemy.exc.DBAPIError as error:
            connection.close()
            if not error.connection_invalidated:
                raise
            # A connection lost between two calls, as by a restart, needs no report.
            connection = self._engine.connect()
            connection.exec_driver_sql(first)
        return connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlalchemy.exc.DBAPIError as error:
            is_operational = isinstance(error.orig, self._operational_error)
            is_passing = is_operational and self._kind.is_passing(error.orig)
            if not error.connection_invalidated and not is_passing:
                raise
            raise DatabaseUnavailableError(f'{self}: {self._kind.reason(error)}') from error
        except self._operational_error as error:  # SQLAlchemy did not read the rows.
            raise DatabaseUnavailableError(f'{self}: {self._kind.reason(error)}') from error

    def rows(self, query: sqlalchemy.Select[Any]) -> list[Any]:
        """Reads rows from the driver: rows of SQLAlchemy would double the time."""
        with self.reading() as connection:
            cursor: Any = connection.execute(query).cursor
            fetched: list[Any] = cursor.fetchall()
        return fetched

    def version(self) -> int:
        """Returns a number that changes when anything but this object may have written.

        With PostgreSQL it always changes, unless the database is held, by this object: see `hold`.
        """
        return self._kind.version(self.reading)

    def hold(self) -> None:
        """Keeps the database for one service, until it is closed or the process ends.

        Raises:
            UserError: another service holds it.
        """
        with self.reading() as connection:
            self._kind.hold(connection)

    def studies(self) -> list[str]:
        """Returns the sorted names of the studies; OWNER/NAME for studies of Vizier's clients."""
        query = sqlalchemy.select(studies.c.owner_id, studies.c.study_id)
        found = [
            (f'{owner}/' if owner != OWNER else '') + study for owner, study in self.rows(query)
        ]
        return sorted(found)

    def close(self) -> None:
        """Closes the database, and lets go of it."""
        with self._lock:
            self._engine.dispose()
            self._kind.release()
