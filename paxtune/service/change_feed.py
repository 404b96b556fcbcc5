import contextlib
import itertools
import uuid
from collections.abc import Iterator

from paxtune.service.schema import ChangesReply, RequestRejectedError
from paxtune.storage.codec import TrialProto, decode_trial, read_trial
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.record import Status, TrialRecord
from paxtune.study.record_checks import DamagedRecordError, Rules
from paxtune.study.sound_trials import SoundTrials

_PAGE_BYTES = 4 * 2**20
_KEPT_DELETIONS = 10_000


class ChangeFeed:
    """Serialized trials, each with the revision that changed it last.

    Revisions count the changes since the feed was made. The generation identifies the feed that
    counted them. Not thread-safe.

    Attributes:
        highest: the highest number that any trial has had; 0 before the first.
    """

    def __init__(self, store: VizierStore) -> None:
        self._store = store
        self._generation, self._revision = uuid.uuid4().hex, 0
        # Ordered by revision.
        self._rows: dict[int, tuple[int, bytes]] = {}
        self._deleted: list[tuple[int, int]] = []
        self._unended: dict[int, TrialRecord] = {}
        self._rules: Rules | None = None
        self._sound = SoundTrials(store.name)
        self.highest = 0
        self._database_version: int | None = None
        self.is_in_doubt = False  # Whether a write has failed since the study was read.
        self.refresh()

    def __contains__(self, id_: int) -> bool:
        return id_ in self._rows

    def __getitem__(self, id_: int) -> bytes:
        return self._rows[id_][1]

    @property
    def ids(self) -> list[int]:
        """All trial numbers, in order."""
        return sorted(self._rows)

    @property
    def max_id(self) -> int:
        """The highest trial number; 0 if there is no trial."""
        return max(self._rows, default=0)

    def read(self, id_: int) -> TrialRecord:
        """Returns one trial."""
        known = self._unended.get(id_)
        return read_trial(self[id_]) if known is None else known

    def unended(self, id_: int) -> TrialRecord | None:
        """Returns a trial that has not ended; None for any other."""
        return self._unended.get(id_)

    def created(self, id_: int) -> str:
        """Returns the time at which a trial was added, as text; '' if it is damaged."""
        try:
            return str(self.read(id_).created)
        except DamagedRecordError:
            return ''

    def added(self, count: int) -> Iterator[tuple[int, str]]:
        """Yields the last trials, each with the key of the request that added it."""
        for id_ in self.ids[-count:]:
            with contextlib.suppress(DamagedRecordError):
                if request := self.read(id_).requests.added:
                    yield id_, request

    @property
    def rules(self) -> Rules:
        """The rules for trials of the study; RequestRejectedError before it is created."""
        if (rules := self._rules) is not None:  # Another thread may drop it meanwhile.
            return rules
        study = self._store.study()
        if study is None:
            raise RequestRejectedError('missing', 'there is no such study')
        try:
            self._rules = rules = Rules.of(study)
        except DamagedRecordError as error:
            raise RequestRejectedError('invalid', f'the study is damaged: {error}') from error
        return rules

    def in_status(self, status: Status) -> list[int]:
        """Returns the numbers of the trials in a status that is not final, in order."""
        return sorted(id_ for id_, each in self._unended.items() if each.status is status)

    def put(self, proto: TrialProto, record: TrialRecord | None = None) -> TrialRecord:
        """Records that a trial was written: its encoded form, and its record."""
        record = record or decode_trial(proto)
        self._put(record.id, proto.SerializeToString(), record)
        return record

    def _put(self, id_: int, content: bytes, record: TrialRecord | None) -> None:
        self._revision, self.highest = self._revision + 1, max(self.highest, id_)
        self._rows.pop(id_, None)  # It becomes the last one.
        self._rows[id_] = (self._revision, content)
        if record is None or record.status.has_ended:
            self._unended.pop(id_, None)
        else:
            self._unended[id_] = record

    def forget(self, id_: int) -> None:
        """Records that a trial was deleted."""
        self._rows.pop(id_, None)
        self._unended.pop(id_, None)
        self._revision += 1
        self._deleted = [*self._deleted, (self._revision, id_)][-_KEPT_DELETIONS:]

    def clear(self) -> None:
        """Records that the study was deleted."""
        for id_ in self.ids:
            self.forget(id_)
        self._rules = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Has the study read again after a write that fails: it may have been committed."""
        try:
            yield
        except BaseException:  # An interrupt, too.
            self.is_in_doubt = True
            raise

    def refresh(self) -> bool:
        """Reads the study again if another process has written, or in doubt; True if so."""
        version = self._store.database.version()
        if version == self._database_version and not self.is_in_doubt:
            return False
        present = dict(self._store.contents())
        for id_ in set(self._rows) - set(present):
            self.forget(id_)
        for id_, content in present.items():
            if id_ not in self or self[id_] != content:
                read = self._sound.read([(id_, content)], read_trial)
                self._put(id_, *((content, read[0]) if read else (_damaged(id_), None)))
        self._rules = None
        self._database_version, self.is_in_doubt = version, False
        return True

    def changes(self, generation: str, since: int) -> ChangesReply:
        """See `StudyCoordinator.changes`."""
        oldest = self._deleted[0][0] if len(self._deleted) >= _KEPT_DELETIONS else 0
        reset = generation != self._generation or since < oldest
        since = 0 if reset else since
        page: list[bytes] = []
        size, upto, more = 0, self._revision, False
        newest = itertools.takewhile(lambda id_: self._rows[id_][0] > since, reversed(self._rows))
        for id_ in reversed(list(newest)):
            revision, content = self._rows[id_]
            if page and size + len(content) > _PAGE_BYTES:
                more = True
                break
            page.append(content)
            size, upto = size + len(content), revision
        gone = [id_ for revision, id_ in self._deleted if revision > since and not reset]
        return ChangesReply(
            generation=self._generation,
            revision=upto if more else self._revision,
            reset=reset,
            more=more,
            deleted=[id_ for id_ in gone if id_ not in self],
            trials=page,
        )


def _damaged(id_: int) -> bytes:
    """Encodes a trial without a state: clients count it, and leave it out."""
    return TrialProto(id=str(id_)).SerializeToString()
