"""Vizier's data store: studies and trials in a database, as Vizier's own service writes them.

Vizier's service is not used. It has no compare-and-swap, reads all trials for one suggestion, and
never finishes the suggestions of a dead process. Here each transition of a trial is one
transaction. Importing this module imports neither JAX nor TensorFlow.
"""

import datetime
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy
from google.protobuf.message import DecodeError
from vizier._src.service import resources, study_pb2

from paxtune.storage.codec import (
    StudySpec,
    TrialProto,
    decode_study,
    decode_trial,
    encode_study,
    encode_trial,
    parse_proto,
    read_trial,
    write_study,
)
from paxtune.storage.database import OWNER, Database, owners, studies, trials
from paxtune.storage.study_file import DATABASE, how_to_recover
from paxtune.study.record import StudyRecord, TrialRecord
from paxtune.study.record_checks import DamagedRecordError
from paxtune.study.sound_trials import SoundTrials
from paxtune.study.store import Journal, Reading
from paxtune.study.transitions import Transition, TurnLostError, applied
from trainer.runtime.home import expanded
from trainer.symbolic.errors import UserError

BROKEN = sqlalchemy.exc.DatabaseError, DecodeError, DamagedRecordError
"""Errors of a database that is damaged."""

_FEW = 500

# Made once: that takes as long as to run it.
_WRITE = (
    trials.update()
    .where(trials.c.trial_name == sqlalchemy.bindparam('name'))
    .values(serialized_trial=sqlalchemy.bindparam('content'))
)


class _Version(NamedTuple):
    """The journal of a store and its revision, and the state of the database (`version`)."""

    journal: Journal
    state: int
    revision: int


class VizierStore:
    """One study of a database: methods of `paxtune.study.store.StudyStore`, and encoded ones."""

    def __init__(self, database: Database, name: str = 'study', owner: str = OWNER) -> None:
        """Opens the study of a name. It need not exist yet.

        Args:
            database: closed with the store.
            owner: of the study, in Vizier's terms: another one for a study of a Vizier client.

        Raises:
            UserError: no study can have that name.
        """
        if not name.isprintable() or not name or '/' in name:
            database.close()
            raise UserError(
                f'{name!r} cannot be the name of a study: expected letters, digits, spaces and '
                'signs other than a slash'
            )
        self.database = database
        self.name = name
        self._sound = SoundTrials(database, _remedy(database))
        self._resource = resources.StudyResource(owner, name)
        # All stores of this study write through one connection, which sees only other writes.
        self._journal = database.journals.setdefault(self._resource.name, Journal())
        self._is_here = sqlalchemy.and_(trials.c.owner_id == owner, trials.c.study_id == name)

    def close(self) -> None:
        self.database.close()

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def study_proto(self) -> study_pb2.Study:
        """Returns the stored study with its name and time; raises KeyError before it is created."""
        query = sqlalchemy.select(studies.c.serialized_study)
        found = self.database.rows(query.where(studies.c.study_name == self._resource.name))
        if not found:
            raise KeyError(self.name)
        return study_pb2.Study.FromString(found[0][0])

    def study_spec(self) -> StudySpec | None:
        """Returns the stored study, as Vizier sees it; None before it is created."""
        try:
            return self.study_proto().study_spec
        except KeyError:
            return None

    def study(self) -> StudyRecord | None:
        spec = self.study_spec()
        return None if spec is None else decode_study(spec, self.database)

    def created(self) -> datetime.datetime:
        created: datetime.datetime = self.study_proto().create_time.ToDatetime(datetime.UTC)
        return created

    def create_study(self, record: StudyRecord, parameters: Iterable[Any]) -> bool:
        return self.create_from_spec(encode_study(record, parameters))

    def create_from_spec(self, spec: StudySpec) -> bool:
        """Creates the study from an encoded record: see `create_study`."""
        study = study_pb2.Study(
            name=self._resource.name,
            display_name=self.name,
            study_spec=spec,
            state=study_pb2.Study.State.ACTIVE,
        )
        study.create_time.GetCurrentTime()
        owner = self._resource.owner_resource.name
        with self.database.transaction() as connection:
            if self.study_spec() is not None:
                return False
            query = sqlalchemy.select(owners).where(owners.c.owner_name == owner)
            if not self.database.rows(query):
                connection.execute(owners.insert().values(owner_name=owner))
            connection.execute(
                studies.insert().values(
                    study_name=study.name,
                    owner_id=self._resource.owner_id,
                    study_id=self.name,
                    serialized_study=study.SerializeToString(),
                )
            )
        return True

    def delete_study(self) -> None:
        with self.database.transaction() as connection:
            connection.execute(trials.delete().where(self._is_here))
            of_study = studies.c.study_name == self._resource.name
            connection.execute(studies.delete().where(of_study))
            self._journal.clear()

    def update_study(self, change: Callable[[StudyRecord], StudyRecord]) -> StudyRecord:
        with self.database.transaction() as connection:
            study = self.study_proto()
            changed = change(decode_study(study.study_spec, self.database))
            write_study(study.study_spec, changed)
            self._write_study(connection, study)
        return changed

    def update_proto(self, change: Callable[[study_pb2.Study], None]) -> study_pb2.Study:
        """Has the stored study changed in place, in one transaction; KeyError if it has none."""
        with self.database.transaction() as connection:
            study = self.study_proto()
            change(study)
            self._write_study(connection, study)
        return study

    def _write_study(self, connection: sqlalchemy.Connection, study: study_pb2.Study) -> None:
        update = studies.update().where(studies.c.study_name == self._resource.name)
        connection.execute(update.values(serialized_study=study.SerializeToString()))

    def ids(self) -> list[int]:
        query = sqlalchemy.select(trials.c.trial_id).where(self._is_here)
        return [id_ for (id_,) in self.database.rows(query.order_by(trials.c.trial_id))]

    def contents(self, ids: Collection[int] | None = None) -> list[tuple[int, bytes]]:
        """Returns the numbers and bytes of stored trials, in order; all, or the given ones."""
        if ids is not None and not ids:
            return []
        query = sqlalchemy.select(trials.c.trial_id, trials.c.serialized_trial)
        if ids is not None and len(ids) <= _FEW:
            # By name alone: with the study too, a database may look at all of its trials.
            query = query.where(trials.c.trial_name.in_([self._trial_name(id_) for id_ in ids]))
        else:
            query = query.where(self._is_here)
        found = self.database.rows(query.order_by(trials.c.trial_id))
        wanted = None if ids is None else set(ids)
        return [(id_, content) for id_, content in found if wanted is None or id_ in wanted]

    def protos(self, ids: Collection[int] | None = None) -> list[TrialProto]:
        """Returns the stored trials by id; all, or those of the given numbers."""
        return [TrialProto.FromString(content) for _, content in self.contents(ids)]

    def trials(self, ids: Collection[int] | None = None) -> list[TrialRecord]:
        return self._sound.read(self.contents(ids), read_trial)

    def read(self, has_ended: Callable[[int], bool], since: object = None) -> Reading:
        with self.database.reading():
            state = self.database.version()
            version = _Version(self._journal, state, self._journal.revision)
            if isinstance(since, _Version) and since[:2] == version[:2]:
                changed = self._journal.since(since.revision)
                if changed is not None and len(stored := self.contents(changed)) == len(changed):
                    return Reading(version, None, self._sound.read(stored, read_trial))
            numbers = self.ids()
            unknown = {number for number in numbers if not has_ended(number)}
            stored = self.contents(unknown)
        # Another process may have deleted some in between.
        gone = unknown - {id_ for id_, _ in stored}
        left = [number for number in numbers if number not in gone] if gone else numbers
        return Reading(version, left, self._sound.read(stored, read_trial))

    def _proto(self, id_: int) -> TrialProto:
        query = sqlalchemy.select(trials.c.serialized_trial)
        found = self.database.rows(query.where(trials.c.trial_name == self._trial_name(id_)))
        if not found:
            raise KeyError(id_)
        return parse_proto(found[0][0])

    def trial(self, id_: int) -> TrialRecord:
        record = decode_trial(self._proto(id_))
        if record.id != id_:
            raise DamagedRecordError(f'trial {id_} has the record of trial {record.id}')
        return record

    def max_id(self) -> int:
        # SQLite looks at all trials for a maximum, and at one for the first in an order.
        query = sqlalchemy.select(trials.c.trial_id).where(self._is_here)
        found = self.database.rows(query.order_by(trials.c.trial_id.desc()).limit(1))
        return found[0][0] if found else 0

    def add_trials(
        self, records: Sequence[TrialRecord], after: int | None = None
    ) -> list[TrialRecord]:
        with self.database.transaction():
            if after not in (None, self.max_id()):
                raise TurnLostError('trials were added in the meantime')
            return [decode_trial(proto) for proto in self.add_protos(map(encode_trial, records))]

    def add_protos(self, protos: Iterable[TrialProto]) -> list[TrialProto]:
        """Adds encoded trials: see `add_trials`."""
        with self.database.transaction() as connection:
            added = list(protos)
            numbered = list(self._numbered(added))
            if numbered:
                connection.execute(trials.insert(), numbered)
                self._note(added)
        return added

    def _numbered(self, protos: Iterable[TrialProto]) -> Iterable[dict[str, Any]]:
        for number, proto in enumerate(protos, start=self.max_id() + 1):
            proto.id = str(number)
            proto.start_time.GetCurrentTime()
            yield self._row(proto)

    def _row(self, proto: TrialProto) -> dict[str, Any]:
        number = int(proto.id)
        proto.name = self._trial_name(number)
        return {
            'trial_name': proto.name,
            'owner_id': self._resource.owner_id,
            'study_id': self.name,
            'trial_id': number,
            'serialized_trial': proto.SerializeToString(),
        }

    def restore_protos(self, protos: Iterable[TrialProto]) -> None:
        """Adds encoded trials, which have their numbers and times."""
        if rows := list(map(self._row, protos)):
            with self.database.transaction() as connection:
                connection.execute(trials.insert(), rows)
                self._journal.clear()

    def apply(self, id_: int, transition: Transition) -> TrialRecord:
        return decode_trial(self.apply_to_proto(id_, transition))

    def apply_to_proto(self, id_: int, transition: Transition) -> TrialProto:
        """Changes a trial as `apply` does, and returns the stored record."""
        with self.database.transaction() as connection:
            stored = self._proto(id_)
            changed = encode_trial(applied(transition, decode_trial(stored), self.now()), stored)
            update = trials.update().where(trials.c.trial_name == self._trial_name(id_))
            connection.execute(update.values(serialized_trial=changed.SerializeToString()))
            self._note([changed])
        return changed

    def write_trials(self, protos: Sequence[TrialProto]) -> None:
        """Writes trials that are there, in one transaction."""
        written = [
            {'name': self._trial_name(int(proto.id)), 'content': proto.SerializeToString()}
            for proto in protos
        ]
        if written:
            with self.database.transaction() as connection:
                # The driver takes longer for a list of one.
                connection.execute(_WRITE, written if len(written) > 1 else written[0])
                self._note(protos)

    def _note(self, written: Iterable[TrialProto]) -> None:
        # Inside the transaction: if it is rolled back, the trials are only read once more.
        for proto in written:
            self._journal.note(int(proto.id))

    def delete_trial(self, id_: int) -> None:
        delete = trials.delete().where(trials.c.trial_name == self._trial_name(id_))
        with self.database.transaction() as connection:
            if connection.execute(delete).rowcount == 0:
                raise KeyError(id_)
            self._journal.note(id_)

    def _trial_name(self, id_: int) -> str:
        return f'{self._resource.name}/trials/{id_}'


def study_protos(database: Database, owner: str) -> list[study_pb2.Study]:
    """Returns all studies of an owner, by name; raises KeyError for an unknown owner."""
    query = sqlalchemy.select(studies.c.serialized_study).where(studies.c.owner_id == owner)
    found = database.rows(query.order_by(studies.c.study_name))
    name = resources.OwnerResource(owner).name
    if not found and not database.rows(
        sqlalchemy.select(owners).where(owners.c.owner_name == name)
    ):
        raise KeyError(owner)
    return [study_pb2.Study.FromString(content) for (content,) in found]


def _remedy(database: Database) -> str:
    """Renders the commands that remove a damaged trial, or rebuild it."""
    if database.path is None:
        return 'To remove it: studies delete.'
    home = database.path.parent
    return f'`studies delete {home}` removes it{how_to_recover(home)}'


def database(directory: str | os.PathLike[str]) -> Path:
    """The file of the study in a directory; raises UserError for no local disk, or no home."""
    if '://' in os.fspath(directory):
        raise UserError(
            f'--job_log_dir={os.fspath(directory)}: {DATABASE} is an SQLite file, which needs a '
            'local disk. Use a local directory, or have a service keep the study (python -m '
            'paxtune.serve), and search with --vizier_endpoint=HOST:PORT'
        )
    return Path(expanded(directory)) / DATABASE
