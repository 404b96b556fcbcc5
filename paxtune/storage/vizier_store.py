"""Vizier's data store: a study and its trials, as protocol buffers in a database.

A study is a Vizier study, in the tables that Vizier's own service writes. Its service is not used
for what must be atomic: it has no compare-and-swap, reads all trials for one suggestion, and
leaves suggestions of a dead process unfinished for ever. Here each change of a trial is one
transaction. Importing this module imports neither JAX nor TensorFlow.
"""

import datetime
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import sqlalchemy
from vizier._src.service import resources, study_pb2

from paxtune.storage.database import OWNER, Database, owners, rows, studies, trials
from trainer.symbolic.errors import UserError

TrialProto: TypeAlias = study_pb2.Trial
StudySpec: TypeAlias = study_pb2.StudySpec

State = Literal['REQUESTED', 'ACTIVE', 'COMPLETED', 'INFEASIBLE']
STATES: dict[int, State] = {
    TrialProto.State.REQUESTED: 'REQUESTED',
    TrialProto.State.ACTIVE: 'ACTIVE',
    TrialProto.State.STOPPING: 'ACTIVE',
    TrialProto.State.SUCCEEDED: 'COMPLETED',
    TrialProto.State.INFEASIBLE: 'INFEASIBLE',
}
"""What a trial is in, by the number of Vizier's state."""

DATABASE = 'study.db'
"""The file of a study in its directory."""

TRIALS = 'trials'
"""Where the directories of its trials are."""

_NAMESPACE = ':paxtune'
_FEW = 500


class Store:
    """One study of a database."""

    def __init__(self, database: Database, name: str = 'study') -> None:
        """Keeps the study in a database, where others may be, too.

        Args:
            database: where; closed with the store.
            name: which study, by its name in the database; it need not be there yet.

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
        self._resource = resources.StudyResource(OWNER, name)
        self._is_here = sqlalchemy.and_(trials.c.owner_id == OWNER, trials.c.study_id == name)

    def close(self) -> None:
        """Closes the database."""
        self.database.close()

    def _study(self) -> study_pb2.Study:
        query = sqlalchemy.select(studies.c.serialized_study)
        with self.database.reading() as connection:
            found = rows(connection, query.where(studies.c.study_name == self._resource.name))
        if not found:
            raise KeyError(self.name)
        return study_pb2.Study.FromString(found[0][0])

    def study(self) -> StudySpec | None:
        """What was said of the study when it was made; None if there is none yet."""
        try:
            return self._study().study_spec
        except KeyError:
            return None

    def created(self) -> datetime.datetime:
        """When the study was made.

        Raises:
            KeyError: there is none yet.
        """
        created: datetime.datetime = self._study().create_time.ToDatetime(datetime.UTC)
        return created

    def create_study(self, study_spec: StudySpec) -> bool:
        """Makes the study, in one transaction.

        Returns:
            Whether it was made: another process may have been first.
        """
        study = study_pb2.Study(
            name=self._resource.name,
            display_name=self.name,
            study_spec=study_spec,
            state=study_pb2.Study.State.ACTIVE,
        )
        study.create_time.GetCurrentTime()
        owner = self._resource.owner_resource.name
        with self.database.transaction() as connection:
            if self.study() is not None:
                return False
            query = sqlalchemy.select(owners).where(owners.c.owner_name == owner)
            if not rows(connection, query):
                connection.execute(owners.insert().values(owner_name=owner))
            connection.execute(
                studies.insert().values(
                    study_name=study.name,
                    owner_id=OWNER,
                    study_id=self.name,
                    serialized_study=study.SerializeToString(),
                )
            )
        return True

    def write_study_notes(self, notes: Mapping[str, str]) -> None:
        """Adds to, or changes, the notes of the study."""
        self.update_study_notes(lambda _: notes)

    def update_study_notes(self, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Adds to, or changes, the notes of the study, in one transaction.

        Args:
            change: given the notes as they are, returns those to write.

        Raises:
            KeyError: there is no study yet.
        """
        with self.database.transaction() as connection:
            study = self._study()
            write_notes(study.study_spec, change(notes(study.study_spec)))
            update = studies.update().where(studies.c.study_name == study.name)
            connection.execute(update.values(serialized_study=study.SerializeToString()))

    def ids(self) -> list[int]:
        """The numbers of the study's trials, in order."""
        query = sqlalchemy.select(trials.c.trial_id).where(self._is_here)
        with self.database.reading() as connection:
            return [id_ for (id_,) in rows(connection, query.order_by(trials.c.trial_id))]

    def trials(self, ids: Collection[int] | None = None) -> list[TrialProto]:
        """The study's trials, by id; all, or those of the given numbers."""
        query = sqlalchemy.select(trials.c.trial_id, trials.c.serialized_trial).where(self._is_here)
        if ids is not None and len(ids) <= _FEW:
            # By name: PostgreSQL may not know yet how many trials there are, and read them all.
            query = query.where(trials.c.trial_name.in_([self._trial_name(id_) for id_ in ids]))
        with self.database.reading() as connection:
            found = rows(connection, query.order_by(trials.c.trial_id))
        wanted = None if ids is None else set(ids)
        return [TrialProto.FromString(t) for id_, t in found if wanted is None or id_ in wanted]

    def read(self, known: Collection[int]) -> tuple[list[int], list[TrialProto]]:
        """The numbers of all trials, and the trials whose numbers are not known, both by id."""
        numbers = self.ids()
        unknown = {number for number in numbers if number not in known}
        found = self.trials(unknown)
        # Another process may have deleted some in between.
        gone = unknown - {int(trial.id) for trial in found}
        return [number for number in numbers if number not in gone] if gone else numbers, found

    def trial(self, id_: int) -> TrialProto:
        """One trial.

        Raises:
            KeyError: there is none of that number.
        """
        query = sqlalchemy.select(trials.c.serialized_trial)
        with self.database.reading() as connection:
            found = rows(connection, query.where(trials.c.trial_name == self._trial_name(id_)))
        if not found:
            raise KeyError(id_)
        return TrialProto.FromString(found[0][0])

    def max_id(self) -> int:
        """The number of the newest trial; 0 where there is none."""
        query = sqlalchemy.select(sqlalchemy.func.max(trials.c.trial_id)).where(self._is_here)
        with self.database.reading() as connection:
            return connection.execute(query).scalar_one() or 0

    def add_trial(self, trial: TrialProto) -> TrialProto:
        """Adds a trial, which gets the next number."""
        self.add_trials([trial])
        return trial

    def add_trials(self, protos: Sequence[TrialProto]) -> None:
        """Adds many trials, which get the next numbers, in one transaction."""
        with self.database.transaction() as connection:
            added = list(self._numbered(protos))
            if added:
                connection.execute(trials.insert(), added)

    def _numbered(self, protos: Iterable[TrialProto]) -> Iterable[dict[str, Any]]:
        for number, proto in enumerate(protos, start=self.max_id() + 1):
            proto.id, proto.name = str(number), self._trial_name(number)
            proto.start_time.GetCurrentTime()
            yield {
                'trial_name': proto.name,
                'owner_id': OWNER,
                'study_id': self.name,
                'trial_id': number,
                'serialized_trial': proto.SerializeToString(),
            }

    def update_trial(self, id_: int, change: Callable[[TrialProto], None]) -> TrialProto:
        """Changes a trial in one transaction.

        Args:
            id_: the trial's number.
            change: changes the trial that it is given, or raises: then nothing is written.

        Returns:
            The trial as it stands now.

        Raises:
            KeyError: there is none of that number.
        """
        with self.database.transaction() as connection:
            trial = self.trial(id_)
            change(trial)
            update = trials.update().where(trials.c.trial_name == self._trial_name(id_))
            connection.execute(update.values(serialized_trial=trial.SerializeToString()))
        return trial

    def write_trials(self, decide: Callable[[], Sequence[TrialProto]]) -> Sequence[TrialProto]:
        """Writes trials that are there, in one transaction.

        Args:
            decide: called in the transaction; returns what is to be written.

        Returns:
            What was written.
        """
        update = trials.update().where(trials.c.trial_name == sqlalchemy.bindparam('name'))
        update = update.values(serialized_trial=sqlalchemy.bindparam('content'))
        with self.database.transaction() as connection:
            protos = decide()
            written = [
                {'name': self._trial_name(int(proto.id)), 'content': proto.SerializeToString()}
                for proto in protos
            ]
            if written:
                connection.execute(update, written)
        return protos

    def delete_trial(self, id_: int) -> None:
        """Deletes a trial.

        Raises:
            KeyError: there is none of that number.
        """
        delete = trials.delete().where(trials.c.trial_name == self._trial_name(id_))
        with self.database.transaction() as connection:
            if connection.execute(delete).rowcount == 0:
                raise KeyError(id_)

    def _trial_name(self, id_: int) -> str:
        name: str = self._resource.trial_resource(str(id_)).name
        return name


def note(container: StudySpec | TrialProto, key: str) -> str | None:
    """What paxtune noted of a study or a trial; None where there is no such note."""
    return notes(container).get(key)


def notes(container: StudySpec | TrialProto) -> dict[str, str]:
    """All that paxtune noted."""
    return {each.key: each.value for each in container.metadata if each.ns == _NAMESPACE}


def drop_notes(container: StudySpec | TrialProto, keys: Collection[str]) -> None:
    """Removes notes of a study or a trial."""
    kept = [each for each in container.metadata if each.ns != _NAMESPACE or each.key not in keys]
    if len(kept) < len(container.metadata):
        copies = [type(each).FromString(each.SerializeToString()) for each in kept]
        del container.metadata[:]
        container.metadata.extend(copies)


def write_notes(container: StudySpec | TrialProto, values: Mapping[str, str]) -> None:
    """Notes something of a study or a trial, in Vizier's metadata of it."""
    known = {each.key: each for each in container.metadata if each.ns == _NAMESPACE}
    for key, value in values.items():
        item = known.get(key) or container.metadata.add(key=key, ns=_NAMESPACE)
        item.value = value


def database(directory: str | os.PathLike[str]) -> Path:
    """The file of the study in a directory.

    Raises:
        UserError: the directory is not on a local disk.
    """
    if '://' in os.fspath(directory):
        raise UserError(
            f'--job_log_dir={os.fspath(directory)}: {DATABASE} is an SQLite file, which needs a '
            'local disk. Use a local directory, or have a service keep the study (python -m '
            'paxtune.serve), and search with --vizier_endpoint=HOST:PORT'
        )
    return Path(directory) / DATABASE
