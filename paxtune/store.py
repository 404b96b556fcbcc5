"""Vizier's data store: one study and its trials, as protocol buffers in SQLite.

A study is a Vizier study, in the tables that Vizier's own service writes. Its service is not used
for what must be atomic: it has no compare-and-swap, reads all trials for one suggestion, and
leaves suggestions of a dead process unfinished for ever. Here each change of a trial is one
transaction. Importing this module imports neither JAX nor TensorFlow.
"""

import contextlib
import datetime
import os
import threading
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import sqlalchemy
from vizier._src.service import custom_errors, resources, sql_datastore, study_pb2

from trainer.errors import UserError

TrialProto: TypeAlias = study_pb2.Trial
StudySpec: TypeAlias = study_pb2.StudySpec

DATABASE = 'study.db'
"""The file of a study in its directory."""

TRIALS = 'trials'
"""Where the directories of its trials are."""

_OWNER = 'paxtune'
_STUDY = resources.StudyResource(_OWNER, 'study')
_NAMESPACE = ':paxtune'
_FEW = 500


class Store:
    """The one study of a database."""

    def __init__(self, path: Path | None, read_only: bool = False) -> None:
        """Opens the database, which is made unless it is there.

        Args:
            path: the SQLite file; None keeps the study in memory.
            read_only: leave it as it is, as another process may be writing to it.

        Raises:
            UserError: the file is no database, or there is none to read.
        """
        self._lock = threading.RLock()
        self._read_only = read_only
        self._engine = sqlalchemy.create_engine(
            _url(path, read_only),
            # Another process may be writing: wait for it, a minute at most.
            connect_args={'check_same_thread': False, 'timeout': 60},
            poolclass=sqlalchemy.StaticPool,
        )
        if read_only:
            sqlalchemy.event.listen(self._engine, 'connect', _only_read)
        try:
            self._data = sql_datastore.SQLDataStore(self._engine)
        except sqlalchemy.exc.DatabaseError as error:
            self.close()
            raise UserError(f'{path} cannot be opened as a study: {error.orig}') from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlalchemy.Connection]:
        """Keeps other threads and processes from writing until what is inside is committed."""
        if self._read_only:
            raise UserError(
                'the study was opened to be read only: Study.load(directory, read_only=False)'
            )
        with self._lock, self._engine.connect() as connection:
            # By itself SQLite lets others write between what is read here and what is written.
            connection.exec_driver_sql('BEGIN IMMEDIATE')
            yield connection

    def close(self) -> None:
        """Closes the database."""
        self._engine.dispose()

    def study(self) -> StudySpec | None:
        """What was said of the study when it was made; None if there is none yet."""
        with self._lock:
            try:
                return self._data.load_study(_STUDY.name).study_spec
            except custom_errors.NotFoundError:
                return None

    def created(self) -> datetime.datetime:
        """When the study was made.

        Raises:
            KeyError: there is none yet.
        """
        with self._lock:
            try:
                made = self._data.load_study(_STUDY.name).create_time
            except custom_errors.NotFoundError:
                raise KeyError(_STUDY.name) from None
        created: datetime.datetime = made.ToDatetime(datetime.UTC)
        return created

    def create_study(self, study_spec: StudySpec) -> None:
        """Makes the study, in one transaction."""
        study = study_pb2.Study(
            name=_STUDY.name,
            display_name='study',
            study_spec=study_spec,
            state=study_pb2.Study.State.ACTIVE,
        )
        study.create_time.GetCurrentTime()
        with self._lock:
            self._data.create_study(study)

    def write_study_notes(self, notes: Mapping[str, str]) -> None:
        """Adds to, or changes, the notes of the study."""
        self.update_study_notes(lambda _: notes)

    def update_study_notes(self, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Adds to, or changes, the notes of the study, in one transaction.

        Args:
            change: given the notes as they are, returns those to write.
        """
        with self._transaction():
            study = self._data.load_study(_STUDY.name)
            write_notes(study.study_spec, change(notes(study.study_spec)))
            self._data.update_study(study)

    def ids(self) -> list[int]:
        """The numbers of the study's trials, in order."""
        with self._lock, self._engine.connect() as connection:
            return [id_ for (id_,) in _rows(connection, _ALL_IDS)]

    def trials(self, ids: Collection[int] | None = None) -> list[TrialProto]:
        """The study's trials, by id; all, or those of the given numbers."""
        with self._lock, self._engine.connect() as connection:
            if ids is None or len(ids) > _FEW:
                rows = _rows(connection, _ALL)
            else:
                rows = _rows(connection, _SOME.format(', '.join('?' * len(ids))), ids)
            wanted = None if ids is None else set(ids)
            return [TrialProto.FromString(t) for id_, t in rows if wanted is None or id_ in wanted]

    def trial(self, id_: int) -> TrialProto:
        """One trial.

        Raises:
            KeyError: there is none of that number.
        """
        with self._lock:
            try:
                return self._data.get_trial(_name(id_))
            except custom_errors.NotFoundError:
                raise KeyError(id_) from None

    def max_id(self) -> int:
        """The number of the newest trial; 0 where there is none."""
        with self._lock:
            return int(self._data.max_trial_id(_STUDY.name))

    def add_trial(self, trial: TrialProto) -> TrialProto:
        """Adds a trial, which gets the next number."""
        with self._transaction():
            number = self.max_id() + 1
            trial.id, trial.name = str(number), _name(number)
            trial.start_time.GetCurrentTime()
            self._data.create_trial(trial)
        return trial

    def add_trials(self, trials: Sequence[TrialProto]) -> None:
        """Adds many trials, which get the next numbers, in one transaction."""
        with self._transaction() as connection:
            first = self.max_id() + 1
            rows = []
            for number, trial in enumerate(trials, start=first):
                trial.id, trial.name = str(number), _name(number)
                trial.start_time.GetCurrentTime()
                rows.append(
                    {
                        'name': trial.name,
                        'owner': _STUDY.owner_id,
                        'study': _STUDY.study_id,
                        'id': number,
                        'trial': trial.SerializeToString(),
                    }
                )
            if rows:
                connection.execute(sqlalchemy.text(_INSERT), rows)
                connection.commit()

    def update_trial(self, id_: int, change: Callable[[TrialProto], None]) -> TrialProto:
        """Changes a trial in one transaction.

        Args:
            id_: the trial's number.
            change: changes the trial that it is given, or raises: then nothing is written.

        Returns:
            The trial as it stands now.
        """
        with self._transaction():
            trial = self.trial(id_)
            change(trial)
            self._data.update_trial(trial)
        return trial

    def delete_trial(self, id_: int) -> None:
        """Deletes a trial.

        Raises:
            KeyError: there is none of that number.
        """
        with self._lock:
            self.trial(id_)
            self._data.delete_trial(_name(id_))


_INSERT = (
    'INSERT INTO trials (trial_name, owner_id, study_id, trial_id, serialized_trial) '
    'VALUES (:name, :owner, :study, :id, :trial)'
)
_ALL_IDS = 'SELECT trial_id FROM trials ORDER BY trial_id'
_ALL = 'SELECT trial_id, serialized_trial FROM trials ORDER BY trial_id'
_SOME = 'SELECT trial_id, serialized_trial FROM trials WHERE trial_id IN ({}) ORDER BY trial_id'


def _rows(
    connection: sqlalchemy.Connection, query: str, values: Collection[int] = ()
) -> Iterator[tuple[Any, ...]]:
    """Rows as SQLite gives them: those of SQLAlchemy take as long as to read their content."""
    raw: Any = connection.connection.driver_connection
    rows: Iterator[tuple[Any, ...]] = raw.execute(query, tuple(values))
    return rows


def note(container: StudySpec | TrialProto, key: str) -> str | None:
    """What paxtune noted of a study or a trial; None where there is no such note."""
    return notes(container).get(key)


def notes(container: StudySpec | TrialProto) -> dict[str, str]:
    """All that paxtune noted."""
    return {each.key: each.value for each in container.metadata if each.ns == _NAMESPACE}


def write_notes(container: StudySpec | TrialProto, values: Mapping[str, str]) -> None:
    """Notes something of a study or a trial, in Vizier's metadata of it."""
    known = {each.key: each for each in container.metadata if each.ns == _NAMESPACE}
    for key, value in values.items():
        item = known.get(key) or container.metadata.add(key=key, ns=_NAMESPACE)
        item.value = value


def _name(id_: int) -> str:
    name: str = _STUDY.trial_resource(str(id_)).name
    return name


def _url(path: Path | None, read_only: bool) -> Any:
    if path is None:
        return sqlalchemy.URL.create('sqlite')
    if not read_only:
        return sqlalchemy.URL.create('sqlite', database=str(path))
    database = 'file:' + urllib.parse.quote(str(path.absolute()))
    # Not 'ro': what a killed process has half written is undone before anything can be read.
    return sqlalchemy.URL.create('sqlite', database=database, query={'mode': 'rw', 'uri': 'true'})


def _only_read(connection: Any, unused: object) -> None:
    connection.execute('PRAGMA query_only = ON')


def database(directory: str | os.PathLike[str]) -> Path:
    """The file of the study in a directory.

    Raises:
        UserError: the directory is not on a local disk.
    """
    if '://' in os.fspath(directory):
        raise UserError(
            f'--job_log_dir={os.fspath(directory)}: {DATABASE} is an SQLite file, which needs a '
            'local disk. Use a local directory.'
        )
    return Path(directory) / DATABASE
