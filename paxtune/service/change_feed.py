import contextlib
import itertools
import uuid
from collections.abc import Iterator

from paxtune.service.schema import ChangesReply
from paxtune.storage.codec import TrialProto, decode_trial
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.record import Status, TrialRecord

_PAGE_BYTES = 4 * 2**20
_KEPT_DELETIONS = 10_000


class ChangeFeed:
    """Serialized trials, each with the revision that changed it last.

    Revisions count the changes since the feed was made. The generation identifies the feed that
    counted them. Not thread-safe.
    """

    def __init__(self, store: VizierStore) -> None:
        self._store = store
        self._generation, self._revision = uuid.uuid4().hex, 0
        # Ordered by revision.
        self._rows: dict[int, tuple[int, bytes]] = {}
        self._deleted: list[tuple[int, int]] = []
        self._unended: dict[int, TrialRecord] = {}
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
        return decode_trial(TrialProto.FromString(self[id_])) if known is None else known

    def in_status(self, status: Status) -> list[int]:
        """Returns the numbers of the trials in a status that is not final, in order."""
        return sorted(id_ for id_, each in self._unended.items() if each.status is status)

    def put(self, proto: TrialProto, record: TrialRecord | None = None) -> TrialRecord:
        """Records that a trial was written: its encoded form, and its record."""
        record = record or decode_trial(proto)
        self._revision += 1
        self._rows.pop(record.id, None)  # It becomes the last one.
        self._rows[record.id] = (self._revision, proto.SerializeToString())
        if record.status.has_ended:
            self._unended.pop(record.id, None)
        else:
            self._unended[record.id] = record
        return record

    def forget(self, id_: int) -> None:
        """Records that a trial was deleted."""
        self._rows.pop(id_, None)
        self._unended.pop(id_, None)
        self._revision += 1
        self._deleted = [*self._deleted, (self._revision, id_)][-_KEPT_DELETIONS:]

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Has the study read again after a write that fails: it may have been committed."""
        try:
            yield
        except Exception:
            self.is_in_doubt = True
            raise

    def refresh(self) -> bool:
        """Reads the study again if another process has written, or in doubt; True if so."""
        version = self._store.database.version()
        if version == self._database_version and not self.is_in_doubt:
            return False
        present = {int(proto.id): proto for proto in self._store.protos()}
        for id_ in set(self._rows) - set(present):
            self.forget(id_)
        for id_, proto in present.items():
            if id_ not in self or self[id_] != proto.SerializeToString():
                self.put(proto)
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
