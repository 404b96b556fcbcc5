import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from google.protobuf.message import Message
from vizier._src.service import study_pb2

from paxtune.storage.codec import (
    MAX_STUDY_BYTES,
    MAX_TRIAL_BYTES,
    StudySpec,
    TrialProto,
    is_own,
    without_own_metadata,
)
from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore
from paxtune.vizier_service import names
from paxtune.vizier_service.errors import immutable, invalid, not_found

if TYPE_CHECKING:
    from paxtune.vizier_service.suggestions import PlainSuggester

_CHANGEABLE = study_pb2.Study.State.ACTIVE, study_pb2.Study.State.STATE_UNSPECIFIED


class VizierStudy:
    """A study as Vizier's API sees it. Thread-safe.

    Trials are kept in memory, since only this process writes to trials of Vizier clients; they are
    read again where another one did. Each change replaces a trial's object. A study that paxtune
    made can be read, and is not changed here: its trials belong to its workers.

    Attributes:
        suggesting: held while trials are suggested, added or deleted.
    """

    def __init__(self, database: Database, name: str) -> None:
        """Opens a study by its resource name. It need not exist yet."""
        owner, study = names.study_of(name)
        self._name, self._database = name, database
        self._store = VizierStore(database, study, owner)
        self._lock = threading.RLock()
        self._trials: dict[int, TrialProto] | None = None
        self._version: int | None = None
        self._suggester: tuple[bytes, PlainSuggester] | None = None
        self.suggesting = threading.RLock()

    def proto(self) -> study_pb2.Study:
        """Returns the stored study; VizierError if there is none."""
        try:
            return self._store.study_proto()
        except KeyError:
            raise not_found(f'study {self._name}') from None

    def require_mutable(self) -> StudySpec:
        """Returns the specification of a study that clients may change, or raises VizierError."""
        study = self.proto()
        if is_own(study.study_spec):
            raise immutable(f'{self._name} is a study of paxtune: only its workers change it')
        if study.state not in _CHANGEABLE:
            state = study_pb2.Study.State.Name(study.state)
            raise immutable(f'{self._name} is {state}, and cannot change')
        return study.study_spec

    def create(self, study: study_pb2.Study) -> bool:
        """Creates the study without paxtune's own metadata; returns False if it exists."""
        spec = StudySpec()
        spec.CopyFrom(study.study_spec)
        del spec.metadata[:]
        spec.metadata.extend(without_own_metadata(study.study_spec.metadata))
        _require_size(spec, MAX_STUDY_BYTES)
        with self.changing():
            return self._store.create_from_spec(spec)

    def update(self, change: Callable[[study_pb2.Study], None]) -> study_pb2.Study:
        """Has the study changed in place."""
        with self.changing():
            self.proto()
            changed = self._store.update_proto(change)
            _require_size(changed, MAX_STUDY_BYTES)
            return changed

    def delete(self) -> None:
        """Deletes the study with its trials."""
        with self.changing():
            self._store.delete_study()
            self._trials = None

    @property
    def trials(self) -> dict[int, TrialProto]:
        """All trials by number; not to be changed."""
        with self._lock:
            version = self._database.version()
            if self._trials is None or version != self._version:
                self._trials = {int(each.id): each for each in self._store.protos()}
                self._version = version
            found = dict(self._trials)
            if is_own(self.proto().study_spec):
                self._trials = None  # Coordinators write to it over the same connection.
            return found

    def trial(self, number: int) -> TrialProto:
        """Returns a trial; VizierError if there is none."""
        self.proto()
        found = self._store.protos([number])
        if not found:
            raise not_found(f'trial {number} of {self._name}')
        return found[0]

    def add(self, trial: TrialProto) -> TrialProto:
        """Adds a trial, which gets a number, and returns it."""
        _require_size(trial, MAX_TRIAL_BYTES)
        with self.changing() as trials:
            (added,) = self._store.add_protos([trial])
            trials[int(added.id)] = added
        return added

    def change(self, number: int, change: Callable[[TrialProto], None]) -> TrialProto:
        """Has a trial changed in place, and returns it."""
        with self.changing() as trials:
            changed = TrialProto()
            changed.CopyFrom(self.trial(number))
            change(changed)
            _require_size(changed, MAX_TRIAL_BYTES)
            self._store.write_trials([changed])
            trials[number] = changed
        return changed

    def remove(self, number: int) -> None:
        """Deletes a trial."""
        with self.changing() as trials:
            self.trial(number)
            self._store.delete_trial(number)
            trials.pop(number, None)

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[int, TrialProto]]:
        """Begins a transaction: all changes in it are written, or none.

        The study is locked before the database. In the other order, two threads could wait for each
        other, and all studies of the database with them.
        """
        with self._lock:
            try:
                with self._database.transaction():
                    yield {} if self._trials is None else self._trials
            except BaseException:
                self._trials = None  # It may have changes that were taken back.
                raise

    def suggest(self, spec: StudySpec) -> TrialProto | None:
        """Makes a trial without a number; None where nothing is left.

        Raises:
            UserError: the study cannot be searched, or nothing was found.
        """
        # Imported here: a service without Vizier clients needs no algorithms.
        from paxtune.vizier_service.suggestions import PlainSuggester

        searched = StudySpec()
        searched.CopyFrom(spec)
        searched.ClearField('metadata')
        key = searched.SerializeToString(deterministic=True)
        if self._suggester is None or self._suggester[0] != key:
            self._suggester = key, PlainSuggester(self._name, searched)
        trials = self.trials
        number = max(trials, default=0) + 1
        return self._suggester[1].suggest([trials[each] for each in sorted(trials)], number)


def _require_size(message: Message, limit: int) -> None:
    """Raises VizierError for a message that other clients could not read in a list."""
    if message.ByteSize() > limit:
        raise invalid(f'{message.ByteSize():,} bytes are more than {limit:,}')
