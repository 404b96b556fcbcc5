"""Databases: what is opened, who may have it, and what happens when it goes away."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from paxtune.storage.database import Database, DatabaseUnavailableError
from paxtune.storage.vizier_store import VizierStore
from tests.conformance.store_suite import STUDY, add
from tools.servers.postgres import PASSWORD
from trainer.symbolic.errors import UserError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def url(postgres):
    """An empty database of a PostgreSQL server."""
    return postgres.emptied_database()


@contextlib.contextmanager
def stored(where, **waits):
    """A store with a study and a trial."""
    with contextlib.closing(VizierStore(Database(where, **waits))) as store:
        store.create_study(STUDY, [])
        add(store)
        yield store


# --- What can be opened ---


@pytest.mark.parametrize(
    ('url', 'why'),
    [
        ('', 'cannot be read'),
        ('study.db', 'cannot be read'),
        ('postgresql://me:geheim@host:port/studies', 'cannot be read'),
        ('postgresql://me:geh@im:geheim@ho:st/studies', 'cannot be read'),
        ('sqlite://', 'names no file'),
        ('sqlite:///:memory:', 'names no file'),
        ('sqlite://host/study.db', 'names no file'),
        ('sqlite:///study.db?mode=memory', 'names no file'),
        ('mysql://me:geheim@host/studies', 'mysql: databases of this kind are not supported'),
        ('postgresql+pg8000://me:geheim@host/studies', r'postgresql\+pg8000: databases of this'),
        (
            'postgresql://me:geheim@127.0.0.1:1/studies',
            'postgresql://me@127.0.0.1:1/studies cannot',
        ),
        ('postgresql://127.0.0.1:1/?password=geheim', 'cannot be opened'),
        ('postgresql://me:geheim@127.0.0.1:1/a?geheim=b', 'cannot be opened'),
    ],
)
def test_urls_that_are_none_are_refused_without_telling_the_password(url, why):
    with pytest.raises(UserError, match=why) as raised:
        Database(url)
    assert 'geheim' not in str(raised.value)
    assert '\n' not in str(raised.value)


def test_a_wrong_password_and_a_database_that_is_missing_are_refused(url):
    with pytest.raises(UserError, match='password authentication failed') as raised:
        Database(url.replace(PASSWORD, 'geheim'))
    assert 'geheim' not in str(raised.value)
    with pytest.raises(UserError, match='"missing" does not exist'):
        Database(url.rpartition('/')[0] + '/missing')


def test_postgresql_without_its_driver_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'psycopg', None)
    with pytest.raises(UserError, match=r"pip install 'paxtune\[postgres\]'"):
        Database('postgresql://me@host/studies')


def test_a_url_of_sqlite_is_its_file(tmp_path):
    with stored(f'sqlite:///{tmp_path / "a.db"}'):
        pass
    with contextlib.closing(Database(tmp_path / 'a.db', read_only=True)) as database:
        assert database.studies() == ['study']


@pytest.mark.parametrize('content', [None, b'', b'no database' * 1000, 'other tables'])
def test_a_database_without_studies_is_refused(tmp_path, content):
    path = tmp_path / 'study.db'
    if content == 'other tables':
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute('CREATE TABLE trials (a)')
    elif content is not None:
        path.write_bytes(content)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(UserError, match=r'study\.db cannot be opened as a study'):
        Database(path, read_only=True)
    assert (path.read_bytes() if path.exists() else None) == before


def test_an_empty_postgresql_database_cannot_be_read_only(url):
    with pytest.raises(UserError, match='it has no table owners'):
        Database(url, read_only=True)
    with stored(url), contextlib.closing(Database(url, read_only=True)) as database:
        assert database.studies() == ['study']


def test_a_mistake_in_a_statement_is_no_fault_of_the_database(tmp_path, url):
    for where in (tmp_path / 'a.db', url):
        with contextlib.closing(Database(where)) as database:
            with pytest.raises(sqlalchemy.exc.DatabaseError), database.reading() as connection:
                connection.exec_driver_sql('SELECT no_such_column FROM trials')
            assert database.studies() == []


def test_a_transaction_does_not_begin_inside_what_only_reads(tmp_path):
    with (
        contextlib.closing(Database(None)) as database,
        database.reading(),
        pytest.raises(RuntimeError, match='inside a block that only reads'),
        database.transaction(),
    ):
        pass


# --- Who may have it ---


@pytest.mark.parametrize('kind', ['sqlite', 'postgres'])
def test_a_database_is_held_by_one_service(kind, tmp_path, request):
    where = tmp_path / 'a.db' if kind == 'sqlite' else request.getfixturevalue('url')
    first, second = Database(where), Database(where, patience=0.3)
    first.hold()
    first.hold()
    with pytest.raises(UserError, match='another service, or a search, works with this database'):
        second.hold()
    assert second.studies() == []  # To read is free.
    first.close()
    second.hold()
    second.close()


_HOLD = """
import sys
from paxtune.storage.database import Database
database = Database(sys.argv[1])
database.hold()
print('held', flush=True)
input()
"""


@pytest.mark.parametrize('kind', ['sqlite', 'postgres'])
def test_a_service_that_was_killed_holds_nothing(kind, tmp_path, request):
    where = f'sqlite:///{tmp_path}/a.db' if kind == 'sqlite' else request.getfixturevalue('url')
    command = [sys.executable, '-c', _HOLD, where]
    with (
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
        contextlib.closing(Database(where, patience=0.3)) as database,
    ):
        assert other.stdout is not None and other.stdout.readline() == b'held\n'
        with pytest.raises(UserError, match='another service'):
            database.hold()
        other.send_signal(signal.SIGKILL)
        other.wait()
        database.hold()


def test_an_interrupt_in_a_call_loses_nothing_in_memory():
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with stored(None) as store:
        call = (sqlalchemy.Engine, 'before_cursor_execute', interrupt)
        sqlalchemy.event.listen(*call)
        try:
            with pytest.raises(KeyboardInterrupt):
                add(store)
        finally:
            sqlalchemy.event.remove(*call)
        add(store)
        assert store.ids() == [1, 2]


def test_memories_are_apart():
    with stored(None) as one, stored(None) as other:
        add(one)
        assert (one.ids(), other.ids()) == ([1, 2], [1])


def test_memory_is_ours():
    with contextlib.closing(Database(None)) as database:
        database.hold()
        assert database.version() == database.version()


def test_sqlite_keeps_a_commit_through_a_power_cut(tmp_path):
    """EXTRA (3) also writes the directory, from which the journal is deleted."""
    opened = contextlib.closing(Database(tmp_path / 'study.db'))
    with opened as database, database.reading() as connection:
        assert connection.exec_driver_sql('PRAGMA synchronous').scalar_one() == 3


def test_the_version_changes_with_what_others_write(tmp_path):
    with stored(tmp_path / 'a.db') as store:
        database = store.database
        before = database.version()
        add(store)
        assert database.version() == before
        with contextlib.closing(VizierStore(Database(tmp_path / 'a.db'))) as other:
            assert database.version() == before
            add(other)
        assert database.version() != before


def test_an_sqlite_file_that_another_keeps_locked_is_unavailable(tmp_path):
    with stored(tmp_path / 'a.db', wait=0.1) as store, stored(tmp_path / 'a.db') as other:
        with (
            other.database.transaction(),
            pytest.raises(DatabaseUnavailableError, match='locked'),
        ):
            add(store)
        add(store)


# --- A server that goes away ---


@pytest.mark.parametrize('crash', [False, True])
def test_after_a_restart_of_postgresql_the_next_call_works(postgres, url, crash):
    with stored(url) as store:
        store.database.hold()
        version = store.database.version()
        postgres.restart(crash)
        assert store.ids() == [1]
        assert add(store).id == 2
        assert store.database.version() != version
        with (
            contextlib.closing(Database(url, patience=0.3)) as other,
            pytest.raises(UserError, match='another service'),
        ):
            other.hold()


def test_while_postgresql_is_down_it_is_unavailable(postgres, url):
    with stored(url) as store:
        postgres.stop()
        try:
            for act in (store.ids, lambda: add(store)):
                with pytest.raises(
                    DatabaseUnavailableError, match=r'refused|closed the connection'
                ) as raised:
                    act()
                assert PASSWORD not in str(raised.value)
        finally:
            postgres.start()
        assert add(store).id == 2


@pytest.mark.parametrize('reads', [False, True])
def test_a_transaction_that_lost_its_server_wrote_nothing(postgres, url, reads):
    with stored(url) as store:
        with pytest.raises(DatabaseUnavailableError), store.database.transaction():
            add(store)
            postgres.restart()
            if reads:
                store.ids()
        assert store.ids() == [1]
        assert add(store).id == 2


def test_a_service_whose_database_went_to_another_is_refused(postgres, url):
    with (
        stored(url, patience=0.3) as store,
        contextlib.closing(Database(url)) as other,
    ):
        store.database.hold()
        with contextlib.closing(psycopg.connect(url, autocommit=True)) as connection:
            connection.execute(
                'SELECT pg_terminate_backend(pid) FROM pg_stat_activity '
                'WHERE pid <> pg_backend_pid() AND application_name = %s',
                ['paxtune'],
            )
        other.hold()
        for _ in range(2):
            with pytest.raises(DatabaseUnavailableError, match='another service'):
                add(store)
        other.close()
        assert add(store).id == 2
