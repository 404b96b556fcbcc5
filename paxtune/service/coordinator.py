"""Coordinator of one study in the service: leases, the suggest lock, compare-and-swap.

A lease on this process's clock gives a trial to a worker. Each write has the attempt's number and
the hash of the bytes that it replaces; the transaction that writes compares both. Each write has
a request ID too, so that a client can send it again after a lost connection.
"""

import dataclasses
import hashlib
import sys
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any

from paxtune.service import schema
from paxtune.service.change_feed import ChangeFeed
from paxtune.service.schema import RequestRejectedError, WorkerOptions
from paxtune.storage.vizier_store import (
    STATES,
    Store,
    StudySpec,
    TrialProto,
    drop_notes,
    note,
    write_notes,
)
from paxtune.study import prefetch, trial_state
from paxtune.study.trial_state import Loss

LEASE_SECONDS = 30.0
"""Time without a heartbeat after which a worker loses its trial."""

_SUGGEST_LOCK_SECONDS = 120.0
_SUGGEST_LOCK_PATIENCE = 0.2
_MAX_WAITING = 8  # Each of them takes a thread of the server.
_KEPT_REQUESTS = 1000

# Metadata of a trial that only the service writes.
_OWN_NOTES = (
    'holder',
    'attempt',
    'faults',
    'losses',
    'furthest',
    'request',
    prefetch.OPEN,
)


@dataclasses.dataclass
class Lease:
    """A worker's claim on a trial.

    Attributes:
        worker: the owner.
        attempt: the attempt's number.
        expires: the time at which the worker loses the trial, unless it sends a heartbeat.
        progress: the number of steps that the worker has done.
        progressed: the time at which `progress` changed last.
        timeout: seconds that a step may take; 0 for no limit.
        max_attempts: attempts that the trial may have; unlimited until its worker sets a limit.
    """

    worker: str
    attempt: int
    expires: float
    progress: int = 0
    progressed: float = 0.0
    timeout: float = 0.0
    max_attempts: int = sys.maxsize


@dataclasses.dataclass
class _Update:
    """A call of `StudyCoordinator.update` that waits for its reply."""

    id: int
    expected: str
    trial: TrialProto
    worker: str
    attempt: int
    request_id: str
    is_decided: bool = False
    is_done: bool = False
    content: bytes = b''
    error: Exception | None = None


class StudyCoordinator:
    """One study of a service."""

    def __init__(
        self,
        store: Store,
        lease_seconds: float = LEASE_SECONDS,
        workers_may_live: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Resumes a study.

        Args:
            store: holds the study; only this process writes to it.
            lease_seconds: the time that a worker may pass without a heartbeat.
            workers_may_live: renews the leases of workers, which outlive a restart of the service
                alone.
            clock: in seconds.
        """
        self._store, self._seconds, self._clock = store, lease_seconds, clock
        self._lock = threading.RLock()
        self._leases: dict[int, Lease] = {}
        self._revoked: set[str] = set()
        self._updates: deque[_Update] = deque()
        self._suggest_lock, self._suggester, self._suggest_lock_expires = '', '', 0.0
        self._suggest_lock_freed, self._num_waiting = threading.Condition(self._lock), 0
        self._requests: OrderedDict[str, list[int]] = OrderedDict()
        self._feed = ChangeFeed(store)
        self._spec: bytes | None = None
        for id_ in self._feed.ids[-_KEPT_REQUESTS:]:
            # After a restart, clients repeat calls whose reply was lost.
            request = note(self._feed.read(id_), 'request')
            if request:
                self._requests.setdefault(request, []).append(id_)
        self._take_up(workers_may_live)

    # The study.

    def study(self, known: str) -> schema.StudyReply:
        """Returns the specification, unless the caller has it already: `known` is its hash."""
        with self._lock:
            self._refresh()
            if self._spec is None:
                spec = self._store.study()
                if spec is None:
                    return schema.StudyReply(spec=None, version='', created=None)
                self._spec = spec.SerializeToString(deterministic=True)
                self._created = self._store.created().timestamp()
            version = digest(self._spec)
            content = None if version == known else self._spec
            return schema.StudyReply(spec=content, version=version, created=self._created)

    def create_study(self, spec: bytes) -> schema.DoneReply:
        """Creates the study; `done` is False if it exists already."""
        parsed = _parsed(StudySpec, spec)
        with self._lock:
            return schema.DoneReply(done=self._store.create_study(parsed))

    def write_notes(
        self, expected: str, notes: Mapping[str, str], request_id: str
    ) -> schema.DoneReply:
        """Changes metadata of the study, unless it has changed since the caller read it."""

        def change(current: Mapping[str, str]) -> Mapping[str, str]:
            if current.get('request') == request_id:
                return {}
            if self.study('').version != expected:
                raise _ConflictError
            return {**notes, 'request': request_id}

        with self._lock:
            if not self.study('').version:
                raise RequestRejectedError('missing', 'there is no such study')
            try:
                self._store.update_study_notes(change)
            except _ConflictError:
                return schema.DoneReply(done=False)
            finally:
                self._spec = None
            return schema.DoneReply(done=True)

    # Trials.

    def changes(self, generation: str, since: int) -> schema.ChangesReply:
        """Returns a page of the trials that have changed since a revision, oldest changes first."""
        with self._lock:
            self._reap()
            self._refresh()
            return self._feed.changes(generation, since)

    def add(
        self, trials: list[bytes], suggest_lock: str, worker: str, request_id: str
    ) -> schema.TrialsReply:
        """Adds trials. An ACTIVE trial is leased to the worker.

        Args:
            trials: a suggested trial has the number that it was suggested for.
            suggest_lock: the token of the suggest lock; '' for trials that no algorithm suggests.
            worker: the caller.
            request_id: identifies this call.
        """
        protos = [_trial(content) for content in trials]
        with self._lock:
            self._reap()
            if request_id in self._requests:
                known = self._requests[request_id]
                return schema.TrialsReply(
                    trials=[self._feed[id_] for id_ in known if id_ in self._feed]
                )
            if suggest_lock:
                if suggest_lock != self._suggest_lock or self._clock() > self._suggest_lock_expires:
                    raise RequestRejectedError(
                        'conflict', 'another worker has the suggest lock now'
                    )
                self._refresh()
                if [proto.id for proto in protos] != [str(self._feed.max_id + 1)]:
                    raise RequestRejectedError('conflict', 'trials were added in the meantime')
            for proto in protos:
                drop_notes(proto, _OWN_NOTES)
                write_notes(proto, {'request': request_id})
                if STATES[proto.state] == 'ACTIVE':
                    if not suggest_lock:
                        raise RequestRejectedError(
                            'invalid', 'only a suggested trial may start ACTIVE'
                        )
                    self._hand_out(proto, worker)
            self._store.add_trials(protos)
            for proto in protos:
                self._feed.put(proto)
                if trial_state.holder(proto):
                    self._grant(proto, None)
            self._requests[request_id] = [int(proto.id) for proto in protos]
            if len(self._requests) > _KEPT_REQUESTS:
                self._requests.popitem(last=False)
            if suggest_lock:
                self._release_suggest_lock()
            return schema.TrialsReply(trials=[self._feed[int(proto.id)] for proto in protos])

    def update(
        self, id: int, expected: str, trial: bytes, worker: str, attempt: int, request_id: str
    ) -> schema.UpdateReply:
        """Changes a trial, unless it has changed since the caller read it.

        Args:
            id: the trial's number.
            expected: the hash of the bytes that the caller read.
            trial: the new content.
            worker: the caller, which owns the trial if it is leased.
            attempt: the worker's attempt.
            request_id: identifies this call.

        Returns:
            True if the trial was written, and its current content.
        """
        update = _Update(id, expected, _trial(trial), worker, attempt, request_id)
        self._updates.append(update)
        with self._lock:
            # The previous owner of the lock may have written this update in its own transaction:
            # the database takes as long for many as for one.
            while not update.is_decided:
                self._write_updates()
            if update.error is not None:
                raise update.error
            return schema.UpdateReply(done=update.is_done, trial=update.content)

    def _write_updates(self) -> None:
        """Writes the pending updates, at most one of each trial, in one transaction."""
        batch: dict[int, _Update] = {}
        for _ in range(len(self._updates)):
            update = self._updates.popleft()
            if batch.setdefault(update.id, update) is not update:
                self._updates.append(update)

        def decide() -> list[TrialProto]:
            # Inside this transaction no other process writes, so the feed is current.
            self._refresh()
            decided = [self._decide(update) for update in batch.values()]
            return [proto for proto in decided if proto is not None]

        try:
            self._reap()
            changed = self._store.write_trials(decide)
        except Exception as error:
            for update in batch.values():
                update.is_decided, update.error = True, update.error or error
            return
        for proto in changed:
            self._feed.put(proto)
            if not trial_state.holder(proto):
                self._leases.pop(int(proto.id), None)
        for update in batch.values():
            if update.error is None:
                update.content = self._feed[update.id]

    def _decide(self, update: '_Update') -> TrialProto | None:
        """Returns the trial to write; None if it is rejected or was written before."""
        update.is_decided = True
        try:
            if update.id not in self._feed:
                raise RequestRejectedError('missing', f'there is no trial {update.id}')
            known = self._feed[update.id]
            current, new = TrialProto.FromString(known), update.trial
            if note(current, 'request') == update.request_id:
                update.is_done = True
                return None
            self._require_lease(current, update.worker, update.attempt)
            if digest(known) != update.expected:
                return None
            if new.name != current.name or new.parameters != current.parameters:
                raise RequestRejectedError(
                    'invalid', f'trial {update.id}: its decisions cannot be changed'
                )
        except RequestRejectedError as refusal:
            update.error = refusal
            return None
        own = {key: value for key in _OWN_NOTES if (value := note(current, key)) is not None}
        if STATES[new.state] != 'ACTIVE' or not trial_state.holder(new):
            own['holder'] = ''
        drop_notes(new, _OWN_NOTES)
        write_notes(new, {**own, 'request': update.request_id})
        update.is_done = True
        return new

    def delete(self, id: int) -> schema.EmptyReply:
        """Deletes a trial."""
        with self._lock:
            try:
                self._store.delete_trial(id)
            except KeyError:
                raise RequestRejectedError('missing', f'there is no trial {id}') from None
            self._feed.forget(id)
            self._leases.pop(id, None)
            return schema.EmptyReply()

    # Leases and the suggest lock.

    def claim(self, worker: str, options: WorkerOptions | None) -> schema.ClaimReply:
        """Leases a trial to a worker: its own, then one that was lost, then one that was added.

        Args:
            worker: the caller.
            options: see `heartbeat`.
        """
        with self._lock:
            self._reap()
            self._refresh()
            for id_, lease in self._leases.items():
                if lease.worker == worker:
                    self._set_options(lease, options)
                    return schema.ClaimReply(trial=self._feed[id_])
            for state in (TrialProto.State.ACTIVE, TrialProto.State.REQUESTED):
                for id_ in self._feed.unended(state):
                    if id_ not in self._leases and not self._feed.is_paused(id_):
                        changed = self._change(id_, lambda each: self._hand_out(each, worker))
                        self._grant(changed, options)
                        return schema.ClaimReply(trial=self._feed[id_])
            return schema.ClaimReply(trial=None)

    def acquire_suggest_lock(self, worker: str) -> schema.SuggestLockReply:
        """Returns a token of the suggest lock; '' while another worker has the lock.

        Adding the suggested trial, `release_suggest_lock` or a timeout ends it. A few calls wait
        for the lock, so that workers need not poll the service.
        """

        def is_free() -> bool:
            return self._suggester in ('', worker) or self._clock() >= self._suggest_lock_expires

        with self._lock:
            if not is_free() and self._num_waiting < _MAX_WAITING:
                self._num_waiting += 1
                self._suggest_lock_freed.wait_for(is_free, _SUGGEST_LOCK_PATIENCE)
                self._num_waiting -= 1
            if not is_free():
                return schema.SuggestLockReply(suggest_lock='')
            self._suggest_lock, self._suggester = uuid.uuid4().hex, worker
            self._suggest_lock_expires = self._clock() + _SUGGEST_LOCK_SECONDS
            return schema.SuggestLockReply(suggest_lock=self._suggest_lock)

    def release_suggest_lock(self, suggest_lock: str) -> schema.EmptyReply:
        """Releases the suggest lock."""
        with self._lock:
            if suggest_lock == self._suggest_lock:
                self._release_suggest_lock()
            return schema.EmptyReply()

    def _release_suggest_lock(self) -> None:
        self._suggest_lock = self._suggester = ''
        self._suggest_lock_freed.notify()

    def heartbeat(
        self, worker: str, id: int, attempt: int, progress: int, options: WorkerOptions | None
    ) -> schema.HeartbeatReply:
        """Renews the lease of a trial.

        Args:
            worker: the owner.
            id: the trial's number.
            attempt: the worker's attempt.
            progress: the number of steps that the worker has done.
            options: limits of the worker's trials; None to keep those that it sent last.

        Returns:
            True if the worker still owns the trial; otherwise the reason.
        """
        with self._lock:
            lease = self._leases.get(id)
            if lease is not None and (lease.worker, lease.attempt) == (worker, attempt):
                now = self._clock()
                if progress != lease.progress:
                    lease.progress, lease.progressed = progress, now
                self._set_options(lease, options)
                if now < lease.expires:
                    lease.expires = now + self._seconds
            self._reap()
            lease = self._leases.get(id)
            held = lease is not None and (lease.worker, lease.attempt) == (worker, attempt)
            return schema.HeartbeatReply(held=held, reason='' if held else self._owner(id))

    def lose(
        self, worker: str, reason: str, counts: bool, is_dead: bool, max_attempts: int
    ) -> schema.LoseReply:
        """Ends the lease of a worker: see `paxtune.study.trial_state.lose`.

        Returns:
            The number of its trial, None if it has none, and the trial's state.
        """
        with self._lock:
            self._reap()
            self._refresh()
            if self._suggester == worker:
                self._release_suggest_lock()
            for id_, lease in list(self._leases.items()):
                if lease.worker == worker:
                    loss = Loss(reason, counts, is_dead)
                    changed = self._lose(id_, lease, loss, max_attempts)
                    return schema.LoseReply(trial=id_, state=STATES[changed.state])
            return schema.LoseReply(trial=None, state='')

    def revoked(self, workers: list[str]) -> schema.RevokedReply:
        """Returns those of some workers whose lease expired, or that made no progress."""
        with self._lock:
            self._reap()
            return schema.RevokedReply(
                workers=[worker for worker in workers if worker in self._revoked]
            )

    @property
    def num_leases(self) -> int:
        """The number of leased trials."""
        return len(self._leases)

    def _hand_out(self, proto: TrialProto, worker: str) -> None:
        prefetch.note_start(proto, self._feed.all_unended)
        trial_state.hand_out(proto, worker)

    def _take_up(self, workers_may_live: bool) -> None:
        for id_ in self._feed.unended(TrialProto.State.ACTIVE):
            proto = self._feed.read(id_)
            if trial_state.holder(proto):
                self._grant(proto, None)
                if not workers_may_live:
                    lease = self._leases[id_]
                    loss = Loss('the search ended, or was killed', is_dead=True)
                    self._lose(id_, lease, loss, lease.max_attempts)

    def _grant(self, proto: TrialProto, options: WorkerOptions | None) -> None:
        now = self._clock()
        lease = Lease(
            trial_state.holder(proto),
            trial_state.attempt(proto),
            now + self._seconds,
            progressed=now,
        )
        self._set_options(lease, options)
        self._leases[int(proto.id)] = lease

    def _set_options(self, lease: Lease, options: WorkerOptions | None) -> None:
        if options is not None:
            lease.timeout, lease.max_attempts = options.trial_timeout, options.max_attempts

    def _reap(self) -> None:
        """Expires leases without a heartbeat or without progress."""
        now = self._clock()
        for id_, lease in list(self._leases.items()):
            if now >= lease.expires:
                loss = Loss(f'its worker sent no heartbeat for {self._seconds:g} s')
            elif lease.timeout and now - lease.progressed > lease.timeout:
                loss = Loss(f'it made no step for {lease.timeout:g} s', counts=True)
            else:
                continue
            self._lose(id_, lease, loss, lease.max_attempts)
            self._revoked.add(lease.worker)

    def _lose(self, id_: int, lease: Lease, loss: Loss, max_attempts: int) -> TrialProto:
        changed = self._change(
            id_, lambda each: trial_state.lose(each, loss, max_attempts, lease.progress)
        )
        self._leases.pop(id_, None)
        return changed

    def _require_lease(self, current: TrialProto, worker: str, attempt: int) -> None:
        lease = self._leases.get(int(current.id))
        if STATES[current.state] != 'ACTIVE' or lease is None:
            if worker and trial_state.holder(current) != worker:
                raise RequestRejectedError('fenced', self._owner(int(current.id)))
            return
        if (lease.worker, lease.attempt) != (worker, attempt):
            raise RequestRejectedError('fenced', self._owner(int(current.id)))

    def _owner(self, id_: int) -> str:
        lease = self._leases.get(id_)
        if lease is not None:
            return f'trial {id_} is held by {lease.worker}, attempt {lease.attempt}'
        return f'no worker holds trial {id_}' if id_ in self._feed else f'trial {id_} is gone'

    def _change(self, id_: int, change: Callable[[TrialProto], None]) -> TrialProto:
        changed = self._store.update_trial(id_, change)
        self._feed.put(changed)
        return changed

    def _refresh(self) -> None:
        """Reads the study again if another process has written to the database."""
        if self._feed.refresh():
            self._spec = None
            self._leases = {id_: each for id_, each in self._leases.items() if id_ in self._feed}


def digest(content: bytes) -> str:
    """Returns the SHA-256 that clients send back for compare-and-swap."""
    return hashlib.sha256(content).hexdigest()


class _ConflictError(Exception):
    """The metadata has changed since the caller read it."""


def _parsed(kind: Any, content: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise RequestRejectedError(
            'invalid', f'expected a serialized {kind.DESCRIPTOR.name}'
        ) from error


def _trial(content: bytes) -> TrialProto:
    proto = _parsed(TrialProto, content)
    if proto.state not in STATES:
        raise RequestRejectedError('invalid', f'a trial has no state {proto.state}')
    try:
        if not all(
            type(event) is dict and type(event.get('event')) is str
            for event in trial_state.history(proto)
        ):
            raise ValueError('history')
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestRejectedError('invalid', 'the metadata of the trial is invalid') from error
    return proto
