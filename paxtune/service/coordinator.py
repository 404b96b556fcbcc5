"""Coordinator of one study in the service: leases, the suggest lock, compare-and-swap.

A lease on this process's clock gives a trial to a worker. Each write has the attempt's number and
the hash of the bytes that it replaces; the transaction that writes compares both. Each write has
a request ID too, so that a client can send it again after a lost connection.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from paxtune.service import schema
from paxtune.service.change_feed import ChangeFeed
from paxtune.service.group_commit import Call, GroupCommit
from paxtune.service.leases import LEASE_SECONDS, Lease, Leases, process_of
from paxtune.service.schema import RequestRejectedError, WorkerOptions
from paxtune.service.suggest_lock import SuggestLock
from paxtune.service.updates import Requests, Update, checked, digest, new_trial, sound_trial
from paxtune.storage import codec
from paxtune.storage.codec import encode_trial, parse_study
from paxtune.storage.vizier_store import VizierStore
from paxtune.study import transitions
from paxtune.study.record import Status, StudyRecord, TrialRecord
from paxtune.study.record_checks import check_requests, check_study
from paxtune.study.redefinition import has_definition, is_redefinition
from paxtune.study.transitions import Transition, WorkerLoss

_RECALLED_TRIALS = 1000


class StudyCoordinator:
    """One study of a service."""

    def __init__(
        self,
        store: VizierStore,
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
        self._store = store
        self._lock = threading.RLock()
        self._leases = Leases(lease_seconds, clock)
        self._revoked: set[str] = set()
        self._calls = GroupCommit(self._lock, self._write)
        self._suggest_lock = SuggestLock(self._lock, clock)
        self._requests = Requests()
        self._feed = ChangeFeed(store)
        self._spec: bytes | None = None
        self._recall()
        if not workers_may_live:
            loss = WorkerLoss('the search ended, or was killed', is_dead=True)
            for id_, lease in list(self._leases.items()):
                if not transitions.is_outside(lease.worker):
                    self._lose(id_, lease, loss, lease.max_attempts)

    def study(self, known: str) -> schema.StudyReply:
        """Returns the specification, unless the caller has it already: `known` is its hash."""
        with self._lock:
            self._refresh()
            if self._spec is None and (spec := self._store.study_spec()) is not None:
                self._spec = spec.SerializeToString(deterministic=True)
                self._created = self._store.created().timestamp()
            version = '' if self._spec is None else digest(self._spec)
            return schema.StudyReply(
                lease_seconds=self._leases.seconds,
                spec=None if version == known else self._spec,
                version=version,
                created=None if self._spec is None else self._created,
            )

    def create_study(self, spec: bytes) -> schema.DoneReply:
        """Creates the study; `done` is False if it exists already."""
        parsed = checked(parse_study, spec)
        checked(check_study, checked(codec.decode_study, parsed))
        with self._lock:
            return schema.DoneReply(done=self._store.create_from_spec(parsed))

    def update_study(self, expected: str, spec: bytes, request_id: str) -> schema.DoneReply:
        """Changes requests and notes of the study, unless it has changed since the caller read it.

        Args:
            expected: the hash of the specification that the caller read.
            spec: the specification with the new record.
        """
        return self._change_study(expected, spec, request_id, has_definition)

    def redefine_study(self, expected: str, spec: bytes, request_id: str) -> schema.DoneReply:
        """Changes budgets of the study, too: see `update_study`."""
        return self._change_study(expected, spec, request_id, is_redefinition)

    def _change_study(
        self,
        expected: str,
        spec: bytes,
        request_id: str,
        may_replace: Callable[[StudyRecord, StudyRecord], bool],
    ) -> schema.DoneReply:
        new = checked(codec.decode_study, checked(parse_study, spec))
        checked(check_requests, new)
        is_current = False

        def change(current: StudyRecord) -> StudyRecord:
            nonlocal is_current
            is_current = self.study('').version == expected
            if is_current and not may_replace(current, new):
                raise RequestRejectedError('invalid', 'a study can change only its budgets')
            return new if is_current else current

        with self._lock:
            if request_id in self._requests:
                return schema.DoneReply(done=True)
            if not self.study('').version:
                raise RequestRejectedError('missing', 'there is no such study')
            with self._feed.writing():
                self._store.update_study(change)
            self._spec = None
            if is_current:
                self._requests.add(request_id)
            return schema.DoneReply(done=is_current)

    def delete_study(self) -> schema.EmptyReply:
        """Deletes the study with its trials, unless workers hold some of them."""
        with self._lock:
            self._reap()
            self._refresh()
            if self._leases:
                raise RequestRejectedError('conflict', f'{len(self._leases)} trials are running')
            with self._feed.writing():
                self._store.delete_study()
            self._feed.clear()
            self._requests, self._spec = Requests(), None
            return schema.EmptyReply()

    def studies(self) -> schema.StudiesReply:
        """Lists all studies of the service."""
        return schema.StudiesReply(names=self._store.database.studies())

    def changes(self, generation: str, since: int) -> schema.ChangesReply:
        """Returns a page of the trials that have changed since a revision, oldest changes first."""
        with self._lock:
            self._reap()
            self._refresh()
            return self._feed.changes(generation, since)

    def add(
        self,
        trials: list[bytes],
        suggest_lock: str,
        worker: str,
        request_id: str,
        after: int | None,
    ) -> schema.TrialsReply:
        """Adds trials. An ACTIVE trial is leased to the worker.

        Args:
            trials: a suggested trial has the number that it was suggested for.
            suggest_lock: the token of the suggest lock; '' for trials that no algorithm suggests.
            after: the number of the newest trial that the caller knows; None for any.
        """
        rules, newest = self._feed.rules, self._feed.highest
        records = [sound_trial(content, rules, newest) for content in trials]

        def add() -> schema.TrialsReply:
            if request_id in self._requests:
                return self._repeated(records, worker, self._requests[request_id])
            self._require_turn(suggest_lock, records, after)
            if not suggest_lock and any(each.status is Status.ACTIVE for each in records):
                raise RequestRejectedError('invalid', 'only a suggested trial may start ACTIVE')
            now = self._store.now()
            new = [encode_trial(new_trial(each, worker, request_id, now)) for each in records]
            with self._feed.writing():
                added = self._store.add_protos(new)
            for proto in added:
                record = self._feed.put(proto)
                if record.holder:
                    self._leases.grant(record)
            self._requests.add(request_id, *(int(proto.id) for proto in added))
            if suggest_lock:
                self._suggest_lock.release(suggest_lock)
            return schema.TrialsReply(trials=[self._feed[int(proto.id)] for proto in added])

        return self._calls.make(Call(add))

    def _repeated(
        self, records: Sequence[TrialRecord], worker: str, added: list[int]
    ) -> schema.TrialsReply:
        """Answers a repeated request, unless its trial belongs to another worker by now."""
        for record, id_ in zip(records, added, strict=False):
            if record.status is Status.ACTIVE and not self._leases.is_held(id_, worker, 1):
                raise RequestRejectedError('fenced', self._leases.owner(id_))
        return schema.TrialsReply(trials=[self._feed[id_] for id_ in added if id_ in self._feed])

    def _require_turn(
        self, suggest_lock: str, records: Sequence[TrialRecord], after: int | None
    ) -> None:
        if suggest_lock and not self._suggest_lock.is_valid(suggest_lock):
            raise RequestRejectedError('conflict', 'another worker has the suggest lock now')
        newest = self._feed.max_id
        is_next = not suggest_lock or [each.id for each in records] == [newest + 1]
        if not is_next or after not in (None, newest):
            raise RequestRejectedError('conflict', 'trials were added in the meantime')

    def update(
        self, id: int, expected: str, trial: bytes, worker: str, attempt: int, request_id: str
    ) -> schema.UpdateReply:
        """Changes a trial, unless it has changed since the caller read it.

        Args:
            expected: the hash of the bytes that the caller read.
            worker: the caller, which owns the trial if it is leased.

        Returns:
            True if the trial was written, and its current content.
        """
        new = sound_trial(trial, self._feed.rules, self._feed.highest, self._feed.unended(id))
        update = Update(id, expected, new, worker, attempt, request_id)

        def reply() -> schema.UpdateReply:
            if update.error is not None:
                raise update.error
            return schema.UpdateReply(done=update.is_done, trial=update.content)

        return self._calls.make(Call(reply, update))

    def _write(self, calls: Sequence[Call[Any]]) -> None:
        """Makes calls, one after another, in one transaction."""
        self._requests.uncommitted.clear()
        self._reap()
        try:
            with self._feed.writing(), self._store.database.transaction():
                # Inside this transaction no other process writes, so the feed is current.
                self._refresh()
                self._write_updates([call.update for call in calls if call.update is not None])
                for call in calls:
                    call.make()
        except BaseException:
            # They are sent again. The feed is in doubt, so the trials are read again.
            self._requests.forget_uncommitted()
            raise

    def _write_updates(self, updates: Sequence[Update]) -> None:
        """Writes updates: first one of each trial, then the others."""
        batch: dict[int, Update] = {}
        later = [each for each in updates if batch.setdefault(each.id, each) is not each]
        known = self._feed, self._leases, self._requests
        decided = [update.decide(*known) for update in batch.values()]
        changed = [proto for proto in decided if proto is not None]
        self._store.write_trials(changed)
        for proto in changed:
            update = batch[int(proto.id)]
            record = self._feed.put(proto, update.written)
            self._requests.add(update.request_id, record.id)
            if not record.holder:
                self._leases.pop(record.id, None)
        for update in batch.values():
            if update.error is None:
                update.content = self._feed[update.id]
        if later:
            self._write_updates(later)

    def delete(self, id: int, created: str) -> schema.EmptyReply:
        """Deletes a trial that was created then, '' for a damaged one; a late call no later one."""
        with self._lock:
            self._reap()
            if id in self._feed and self._feed.created(id) == created:
                with self._feed.writing():
                    self._store.delete_trial(id)
                self._feed.forget(id)
                self._leases.pop(id, None)
            return schema.EmptyReply()

    def claim(self, worker: str, options: WorkerOptions | None) -> schema.ClaimReply:
        """Leases a trial to a worker: its current one, else a lost one, else an added one."""

        def claim() -> schema.ClaimReply:
            held = self._leases.of_worker(worker)
            if held is not None:
                self._leases[held].set_options(options)
                return schema.ClaimReply(trial=self._feed[held])
            waiting = self._feed.in_status(Status.ACTIVE) + self._feed.in_status(Status.REQUESTED)
            free = next((id_ for id_ in waiting if id_ not in self._leases), None)
            if free is None:
                return schema.ClaimReply(trial=None)
            claimed = self._apply(free, lambda each, now: transitions.claim(each, worker, now))
            self._leases.grant(claimed, options)
            return schema.ClaimReply(trial=self._feed[free])

        return self._calls.make(Call(claim))

    def acquire_suggest_lock(self, worker: str) -> schema.SuggestLockReply:
        """Returns a token of the suggest lock; '' while another worker has the lock."""
        with self._lock:
            return schema.SuggestLockReply(suggest_lock=self._suggest_lock.acquire(worker))

    def release_suggest_lock(self, suggest_lock: str) -> schema.EmptyReply:
        """Releases the suggest lock."""
        with self._lock:
            self._suggest_lock.release(suggest_lock)
            return schema.EmptyReply()

    def heartbeat(
        self, worker: str, id: int, attempt: int, progress: int, options: WorkerOptions | None
    ) -> schema.HeartbeatReply:
        """Renews the lease of a trial.

        Args:
            progress: the number of steps that the worker has done.
            options: limits of the worker's trials; None to keep the last ones.

        Returns:
            True if the worker still owns the trial; otherwise the reason.
        """
        with self._lock:
            if self._leases.is_held(id, worker, attempt):
                self._leases.renew(id, progress, options)
            self._reap()
            held = self._leases.is_held(id, worker, attempt)
            return schema.HeartbeatReply(held=held, reason='' if held else self._leases.owner(id))

    def lose(
        self, worker: str, reason: str, counts: bool, is_dead: bool, max_attempts: int
    ) -> schema.LoseReply:
        """Ends the leases of a worker and its lanes: see `transitions.lose`.

        Returns:
            The first of its trials, and the state of that, if any.
        """
        with self._lock:
            self._reap()
            self._refresh()
            self._suggest_lock.release_process(worker)
            held = self._leases.of_process(worker)
            # Any of several trials may have ended the worker.
            loss = WorkerLoss(reason, counts and len(held) == 1, is_dead)
            lost = [self._lose(id_, self._leases[id_], loss, max_attempts) for id_ in held]
            if not lost:
                return schema.LoseReply(trial=None, state='')
            return schema.LoseReply(trial=lost[0].id, state=lost[0].status.upper())

    def revoked(self, workers: list[str]) -> schema.RevokedReply:
        """Returns the workers whose lease expired, or that made no progress."""
        with self._lock:
            self._reap()
            return schema.RevokedReply(workers=[each for each in workers if each in self._revoked])

    @property
    def num_leases(self) -> int:
        """The number of leased trials."""
        return len(self._leases)

    def tick(self) -> None:
        """Shows that the service runs: see `Leases.tick`."""
        with self._lock:
            self._leases.tick()

    def _reap(self) -> None:
        if self._spec is None and not self.study('').version:
            raise RequestRejectedError('missing', 'there is no such study')
        if self._feed.is_in_doubt or any(self._leases.expired()):
            self._refresh()  # No trial that has ended is taken away.
        for id_, lease, loss in self._leases.expired():
            self._lose(id_, lease, loss, lease.max_attempts)
            self._revoked.add(process_of(lease.worker))

    def _lose(self, id_: int, lease: Lease, loss: WorkerLoss, max_attempts: int) -> TrialRecord:
        lost = self._apply(
            id_, lambda each, now: transitions.lose(each, loss, max_attempts, lease.progress, now)
        )
        self._leases.pop(id_, None)
        return lost

    def _apply(self, id_: int, transition: Transition) -> TrialRecord:
        with self._feed.writing():
            proto = self._store.apply_to_proto(id_, transition)
        return self._feed.put(proto)

    def _refresh(self) -> None:
        """Reads the study again if another process has written to the database, or in doubt."""
        if self._feed.refresh():
            self._recall()

    def _recall(self) -> None:
        """Makes all that is in memory from the rows."""
        self._spec = None
        self._leases.follow(map(self._feed.read, self._feed.in_status(Status.ACTIVE)))
        for id_, request in self._feed.added(_RECALLED_TRIALS):
            self._requests.add(request, id_)  # Clients repeat calls whose reply was lost.
