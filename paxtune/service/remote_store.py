import contextlib
import dataclasses
import datetime
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import tenacity

from paxtune.service import schema
from paxtune.service.client import Client
from paxtune.service.leases import LEASE_SECONDS
from paxtune.service.schema import RequestRejectedError, WorkerOptions
from paxtune.service.updates import digest
from paxtune.storage import codec
from paxtune.storage.codec import StudySpec, TrialProto, parse_trial
from paxtune.study.record import MAX_TEXT, StudyRecord, TrialRecord
from paxtune.study.record_checks import DamagedRecordError
from paxtune.study.redefinition import has_definition
from paxtune.study.sound_trials import SoundTrials
from paxtune.study.store import AddSuggested, Journal, Reading, StudyStore
from paxtune.study.transitions import LeaseLostError, Transition, TurnLostError, WorkerLoss


def lose(client: Client, worker: str, loss: WorkerLoss, max_attempts: int) -> int | None:
    """Ends a worker's lease: see `transitions.lose`. Returns the trial's number, or None."""
    loss = dataclasses.replace(loss, reason=loss.reason[:MAX_TEXT])
    request = schema.LoseRequest(
        worker=worker, **dataclasses.asdict(loss), max_attempts=max_attempts
    )
    return client.call(request).trial


_Reply = TypeVar('_Reply', schema.TrialsReply, schema.UpdateReply)


class RemoteStore(StudyStore):
    """A study in a service, a `StudyStore` with the heartbeats of a worker.

    It caches the trials, and fetches only changes.

    Attributes:
        worker: this worker's name; trials are leased to it.
        options: limits of this worker's trials; None before they are known.
        lease_seconds: the time that the service gives a worker without a heartbeat.
    """

    is_shared = True

    def __init__(self, client: Client, worker: str = '') -> None:
        """Makes the store of a client's study; the worker is '' if it runs no trials."""
        self._client, self.worker = client, worker
        self.options: WorkerOptions | None = None
        self.lease_seconds = LEASE_SECONDS
        self._heartbeats: Client | None = None
        self._lock = threading.RLock()
        self._generation, self._revision = '', 0
        self._content: dict[int, bytes] = {}
        self._journal = Journal()
        self._sound = SoundTrials(f'{client.endpoint}/{client.study}')
        self._held: dict[int, int] = {}
        self._lost: set[int] = set()  # The service rejects writes to these.
        self._spec: StudySpec | None = None
        self._version, self._created = '', 0.0

    @property
    def flags(self) -> list[str]:
        return [f'--vizier_endpoint={self._client.endpoint}', f'--study={self._client.study}']

    def as_worker(self, worker: str) -> 'RemoteStore':
        """Makes the store of another worker of this process. Both have one client."""
        return RemoteStore(self._client, worker)

    def close(self) -> None:
        self._client.close()
        if self._heartbeats is not None:
            self._heartbeats.close()

    def is_alive(self, worker: str) -> bool:
        return bool(worker)  # The service takes the trials of others away.

    def study(self) -> StudyRecord | None:
        spec = self._study_spec()
        return None if spec is None else codec.decode_study(spec, self._client.study)

    def _study_spec(self) -> StudySpec | None:
        with self._lock:
            reply = self._client.call(schema.StudyRequest(known=self._version))
            self._version, self.lease_seconds = reply.version, reply.lease_seconds
            if not self._version:
                self._spec = None
            elif reply.spec is not None:
                self._spec = codec.parse_study(reply.spec)
                self._created = reply.created or 0.0
            return self._spec

    def created(self) -> datetime.datetime:
        if self._spec is None and self._study_spec() is None:
            raise KeyError('study')
        return datetime.datetime.fromtimestamp(self._created, datetime.UTC)

    def create_study(self, record: StudyRecord, parameters: Iterable[Any]) -> bool:
        spec = codec.encode_study(record, parameters).SerializeToString()
        return self._client.call(schema.CreateStudyRequest(spec=spec)).done

    def update_study(self, change: Callable[[StudyRecord], StudyRecord]) -> StudyRecord:
        request_id = uuid.uuid4().hex
        while True:
            spec = self._study_spec()
            if spec is None:
                raise KeyError('study')
            current = codec.decode_study(spec, self._client.study)
            changed = change(current)
            content = codec.write_study(StudySpec.FromString(spec.SerializeToString()), changed)
            is_same = has_definition(current, changed)
            kind = schema.UpdateStudyRequest if is_same else schema.RedefineStudyRequest
            request = kind(
                expected=self._version, spec=content.SerializeToString(), request_id=request_id
            )
            if self._client.call(request).done:
                return changed

    def delete_study(self) -> None:
        self._client.call(schema.DeleteStudyRequest())

    def ids(self) -> list[int]:
        with self._lock:
            self._sync()
            return sorted(self._content)

    def trials(self, ids: Collection[int] | None = None) -> list[TrialRecord]:
        with self._lock:
            self._sync()
            return self._read(self._content if ids is None else self._content.keys() & set(ids))

    def read(self, has_ended: Callable[[int], bool], since: object = None) -> Reading:
        with self._lock:
            self._sync()
            version = (self._journal, self._journal.revision)
            if isinstance(since, tuple) and since[0] is self._journal:
                changed = self._journal.since(since[1])
                if changed is not None and self._content.keys() >= set(changed):
                    return Reading(version, None, self._read(changed))
            numbers = sorted(self._content)
            return Reading(version, numbers, self._read(i for i in numbers if not has_ended(i)))

    def _read(self, ids: Iterable[int]) -> list[TrialRecord]:
        return self._sound.read(((id_, self._content[id_]) for id_ in sorted(ids)), parse_trial)

    def trial(self, id_: int) -> TrialRecord:
        with self._lock:
            # Only its owner changes a leased trial.
            if id_ not in self._held or id_ in self._lost:
                self._sync()
            return parse_trial(self._content[id_])

    def add_trials(
        self, records: Sequence[TrialRecord], after: int | None = None, suggest_lock: str = ''
    ) -> list[TrialRecord]:
        request = schema.AddRequest(
            trials=[codec.encode_trial(trial).SerializeToString() for trial in records],
            suggest_lock=suggest_lock,
            worker=self.worker,
            after=after,
        )
        return [self._take(content) for content in self._write(request).trials]

    def apply(self, id_: int, transition: Transition) -> TrialRecord:
        request_id = uuid.uuid4().hex
        with self._lock:
            if id_ not in self._content:
                self._sync()
            while True:
                read = self._content[id_]
                stored = TrialProto.FromString(read)
                changed = transition(parse_trial(read), self.now())
                held = self._held.get(id_)
                request = schema.UpdateRequest(
                    id=id_,
                    expected=digest(read),
                    trial=codec.encode_trial(changed, stored).SerializeToString(),
                    worker=self.worker if held else '',
                    attempt=held or 0,
                    request_id=request_id,
                )
                reply = self._write(request, id_)
                self._keep(id_, reply.trial)
                if reply.done:
                    record = parse_trial(reply.trial)
                    if not record.holder:
                        self._held.pop(id_, None)
                    return record

    def delete_trial(self, id_: int) -> None:
        with self._lock:
            self._sync()
            try:
                created = str(parse_trial(self._content[id_]).created)
            except DamagedRecordError:
                created = ''
        self._client.call(schema.DeleteRequest(id=id_, created=created))

    def claim(self, among: Collection[int]) -> TrialRecord | None:
        request = schema.ClaimRequest(worker=self.worker, options=self.options)
        content = self._client.call(request).trial
        return None if content is None else self._take(content)

    @contextlib.contextmanager
    def turn(self) -> Iterator[AddSuggested]:
        polling = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda reply: not reply.suggest_lock),
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=0.4),
        )
        request = schema.AcquireSuggestLockRequest(worker=self.worker)
        suggest_lock = polling(self._client.call, request).suggest_lock

        def add(trial: TrialRecord) -> TrialRecord:
            nonlocal suggest_lock
            (added,) = self.add_trials([trial], suggest_lock=suggest_lock)
            suggest_lock = ''  # The service has released it.
            return added

        try:
            yield add
        finally:
            if suggest_lock:
                self._client.call(schema.ReleaseSuggestLockRequest(suggest_lock=suggest_lock))

    def heartbeat(self, progress: int) -> str | None:
        """Renews the leases, with the current steps. Returns why one was lost, or None."""
        if self._heartbeats is None:
            # A connection of its own: other calls may wait for the database.
            self._heartbeats = self._client.another(self.lease_seconds / 4)
        for id_, attempt in list(self._held.items()):
            request = schema.HeartbeatRequest(
                worker=self.worker, id=id_, attempt=attempt, progress=progress, options=self.options
            )
            reply = self._heartbeats.call(request)
            if reply.held:
                continue
            with self._lock:  # A trial that ends meanwhile is not lost.
                if self._held.get(id_) == attempt:
                    self._lost.add(id_)
                    return reply.reason
        return None

    def _write(self, request: schema.Write[_Reply], id_: int = 0) -> _Reply:
        try:
            return self._client.call(request)
        except RequestRejectedError as error:
            if error.code == 'fenced':
                self._lost.add(id_)
                raise LeaseLostError(str(error)) from None
            if error.code == 'missing':
                raise KeyError(id_) from None
            if error.code == 'conflict':
                raise TurnLostError(str(error)) from None
            raise

    def _take(self, content: bytes) -> TrialRecord:
        trial = parse_trial(content)
        with self._lock:
            self._keep(trial.id, content)
            if self.worker and trial.holder == self.worker:
                self._held[trial.id] = trial.attempt
                self._lost.discard(trial.id)
        return trial

    def _sync(self) -> None:
        more = True
        while more:
            request = schema.ChangesRequest(generation=self._generation, since=self._revision)
            reply = self._client.call(request)
            if reply.reset:
                self._content.clear()
                self._journal.clear()
            self._generation, self._revision = reply.generation, reply.revision
            for id_ in reply.deleted:
                self._content.pop(id_, None)
                self._journal.note(id_)
            for content in reply.trials:
                self._keep(int(TrialProto.FromString(content).id), content)
            more = reply.more

    def _keep(self, id_: int, content: bytes) -> None:
        if self._content.get(id_) != content:
            self._content[id_] = content
            self._journal.note(id_)
