"""One study inside the service: who holds which trial, whose turn it is, what has changed.

A trial is held by a lease on this process's clock. Each write names the bytes that it is based on,
and the attempt that it is of: both are compared in the transaction that writes. What a lost
connection leaves in doubt can be sent again: a write is known by its `request`.
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

from paxtune.service.change_feed import Rows
from paxtune.service.schema import Refused
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
"""A worker that was not heard of for so long has lost its trial."""

_TURN_SECONDS = 120.0
_TURN_WAIT = 0.02
_TURN_PATIENCE = 0.2
_MAX_WAITING = 8  # Each of them takes a thread of the server.
_KEPT_REQUESTS = 1000

# What the service alone says of a trial.
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
    """A trial in the hands of a worker.

    Attributes:
        worker: who has it.
        attempt: of which attempt.
        expires: when it is lost unless the worker is heard of.
        progress: how many steps the worker has done.
        progressed: when that number grew.
        timeout: how many seconds a step may take; 0 for any.
        max_attempts: how often the trial is tried; without end until its worker says so.
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
    """A call of `Hub.update`, until it is answered."""

    id: int
    expected: str
    trial: TrialProto
    worker: str
    attempt: int
    request: str
    is_decided: bool = False
    is_done: bool = False
    row: bytes = b''
    error: Exception | None = None


class Hub:
    """One study of a service."""

    def __init__(
        self,
        store: Store,
        lease_seconds: float = LEASE_SECONDS,
        workers_may_live: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes up a study where it stands.

        Args:
            store: where it is kept, by this process alone.
            lease_seconds: how long a worker may be silent.
            workers_may_live: whether those who hold trials may be there still, as after a restart
                of the service alone: they get new leases.
            clock: in seconds.
        """
        self._store, self._seconds, self._clock = store, lease_seconds, clock
        self._lock = threading.RLock()
        self._leases: dict[int, Lease] = {}
        self._revoked: set[str] = set()
        self._updates: deque[_Update] = deque()
        self._turn, self._turn_of, self._turn_ends = '', '', 0.0
        self._turn_over, self._num_waiting = threading.Condition(self._lock), 0
        self._requests: OrderedDict[str, list[int]] = OrderedDict()
        self._rows = Rows(store)
        self._spec: bytes | None = None
        for id_ in self._rows.ids[-_KEPT_REQUESTS:]:
            # After a restart, calls that are in doubt are sent again.
            request = note(self._rows.read(id_), 'request')
            if request:
                self._requests.setdefault(request, []).append(id_)
        self._take_up(workers_may_live)

    # The study.

    def study(self, known: str) -> dict[str, Any]:
        """What is said of the study, unless the caller knows it: by the hash of its bytes."""
        with self._lock:
            self._refresh()
            if self._spec is None:
                spec = self._store.study()
                if spec is None:
                    return {'spec': None, 'version': '', 'created': None}
                self._spec = spec.SerializeToString(deterministic=True)
                self._created = self._store.created().timestamp()
            version = digest(self._spec)
            content = None if version == known else self._spec
            return {'spec': content, 'version': version, 'created': self._created}

    def create_study(self, spec: bytes) -> dict[str, Any]:
        """Makes the study; false where somebody else has made it."""
        parsed = _parsed(StudySpec, spec)
        with self._lock:
            return {'created': self._store.create_study(parsed)}

    def write_notes(self, expected: str, notes: Mapping[str, str], request: str) -> dict[str, Any]:
        """Changes notes of the study, unless it has changed since the caller read it."""

        def change(current: Mapping[str, str]) -> Mapping[str, str]:
            if current.get('request') == request:
                return {}
            if self.study('')['version'] != expected:
                raise _ConflictError
            return {**notes, 'request': request}

        with self._lock:
            if not self.study('')['version']:
                raise Refused('missing', 'there is no such study')
            try:
                self._store.update_study_notes(change)
            except _ConflictError:
                return {'done': False}
            finally:
                self._spec = None
            return {'done': True}

    # Trials.

    def changes(self, epoch: str, since: int) -> dict[str, Any]:
        """Trials that have changed since a revision, oldest changes first, a page at a time."""
        with self._lock:
            self._reap()
            self._refresh()
            return self._rows.changes(epoch, since)

    def add(self, trials: list[bytes], turn: str, worker: str, request: str) -> dict[str, Any]:
        """Adds trials. Those that are ACTIVE are the worker's.

        Args:
            trials: one that is suggested has the number that it was suggested for.
            turn: whose end this is; '' for trials that are not the algorithm's.
            worker: who suggests.
            request: names this call.
        """
        protos = [_trial(content) for content in trials]
        with self._lock:
            self._reap()
            if request in self._requests:
                known = self._requests[request]
                return {'trials': [self._rows[id_] for id_ in known if id_ in self._rows]}
            if turn:
                if turn != self._turn or self._clock() > self._turn_ends:
                    raise Refused('conflict', 'the turn has passed to another worker')
                self._refresh()
                if [proto.id for proto in protos] != [str(self._rows.max_id + 1)]:
                    raise Refused('conflict', 'trials were added in the meantime')
            for proto in protos:
                drop_notes(proto, _OWN_NOTES)
                write_notes(proto, {'request': request})
                if STATES[proto.state] == 'ACTIVE':
                    if not turn:
                        raise Refused('invalid', 'only a suggested trial begins to run at once')
                    self._hand_out(proto, worker)
            self._store.add_trials(protos)
            for proto in protos:
                self._rows.put(proto)
                if trial_state.holder(proto):
                    self._grant(proto, {})
            self._requests[request] = [int(proto.id) for proto in protos]
            if len(self._requests) > _KEPT_REQUESTS:
                self._requests.popitem(last=False)
            if turn:
                self._end_turn()
            return {'trials': [self._rows[int(proto.id)] for proto in protos]}

    def update(
        self, id: int, expected: str, trial: bytes, worker: str, attempt: int, request: str
    ) -> dict[str, Any]:
        """Changes a trial, unless it has changed since the caller read it.

        Args:
            id: the trial's number.
            expected: the hash of the bytes that the caller read.
            trial: what it is to be.
            worker: who says so; of a trial that is held, its holder.
            attempt: the holder's attempt.
            request: names this call.

        Returns:
            Whether it was done, and the trial as it stands now.
        """
        update = _Update(id, expected, _trial(trial), worker, attempt, request)
        self._updates.append(update)
        with self._lock:
            # Whoever had the lock may have written it with its own: the database takes as long for
            # many as for one.
            while not update.is_decided:
                self._write_updates()
            if update.error is not None:
                raise update.error
            return {'done': update.is_done, 'trial': update.row}

    def _write_updates(self) -> None:
        """Writes what waits to be written, one update of each trial, in one transaction."""
        batch: dict[int, _Update] = {}
        for _ in range(len(self._updates)):
            update = self._updates.popleft()
            if batch.setdefault(update.id, update) is not update:
                self._updates.append(update)

        def decide() -> list[TrialProto]:
            # While this is written nobody else writes, so the rows are what is known of them.
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
            self._rows.put(proto)
            if not trial_state.holder(proto):
                self._leases.pop(int(proto.id), None)
        for update in batch.values():
            if update.error is None:
                update.row = self._rows[update.id]

    def _decide(self, update: '_Update') -> TrialProto | None:
        """The trial as it is to be written; None where it is refused, or was written before."""
        update.is_decided = True
        try:
            if update.id not in self._rows:
                raise Refused('missing', f'there is no trial {update.id}')
            known = self._rows[update.id]
            current, new = TrialProto.FromString(known), update.trial
            if note(current, 'request') == update.request:
                update.is_done = True
                return None
            self._require_lease(current, update.worker, update.attempt)
            if digest(known) != update.expected:
                return None
            if new.name != current.name or new.parameters != current.parameters:
                raise Refused('invalid', f'trial {update.id}: its decisions cannot be changed')
        except Refused as refusal:
            update.error = refusal
            return None
        own = {key: value for key in _OWN_NOTES if (value := note(current, key)) is not None}
        if STATES[new.state] != 'ACTIVE' or not trial_state.holder(new):
            own['holder'] = ''
        drop_notes(new, _OWN_NOTES)
        write_notes(new, {**own, 'request': update.request})
        update.is_done = True
        return new

    def delete(self, id: int) -> dict[str, Any]:
        """Deletes a trial."""
        with self._lock:
            try:
                self._store.delete_trial(id)
            except KeyError:
                raise Refused('missing', f'there is no trial {id}') from None
            self._rows.forget(id)
            self._leases.pop(id, None)
            return {}

    # Who does what.

    def claim(self, worker: str, terms: Mapping[str, float]) -> dict[str, Any]:
        """A trial that is there to be run: the worker's own, one that was lost, one that was added.

        Args:
            worker: who asks.
            terms: see `heartbeat`.
        """
        with self._lock:
            self._reap()
            self._refresh()
            for id_, lease in self._leases.items():
                if lease.worker == worker:
                    self._take_terms(lease, terms)
                    return {'trial': self._rows[id_]}
            for state in (TrialProto.State.ACTIVE, TrialProto.State.REQUESTED):
                for id_ in self._rows.unended(state):
                    if id_ not in self._leases and not self._rows.is_paused(id_):
                        changed = self._change(id_, lambda each: self._hand_out(each, worker))
                        self._grant(changed, terms)
                        return {'trial': self._rows[id_]}
            return {'trial': None}

    def take_turn(self, worker: str) -> dict[str, Any]:
        """The right to suggest the next trial; '' while another worker has it.

        It ends with the trial that is added, by `end_turn`, or after a while. A few workers are
        answered only when they can have it: the others would keep the service busy with asking.
        """

        def is_free() -> bool:
            return self._turn_of in ('', worker) or self._clock() >= self._turn_ends

        with self._lock:
            if not is_free() and self._num_waiting < _MAX_WAITING:
                self._num_waiting += 1
                self._turn_over.wait_for(is_free, _TURN_PATIENCE)
                self._num_waiting -= 1
            if not is_free():
                return {'turn': '', 'wait': _TURN_WAIT}
            self._turn, self._turn_of = uuid.uuid4().hex, worker
            self._turn_ends = self._clock() + _TURN_SECONDS
            return {'turn': self._turn, 'wait': 0.0}

    def end_turn(self, turn: str) -> dict[str, Any]:
        """Gives back the right to suggest."""
        with self._lock:
            if turn == self._turn:
                self._end_turn()
            return {}

    def _end_turn(self) -> None:
        self._turn = self._turn_of = ''
        self._turn_over.notify()

    def heartbeat(
        self, worker: str, id: int, attempt: int, progress: int, terms: Mapping[str, float]
    ) -> dict[str, Any]:
        """Renews the lease of a trial.

        Args:
            worker: who holds it.
            id: the trial's number.
            attempt: which attempt it is.
            progress: how many steps the worker has done.
            terms: `trial_timeout`, the seconds that a step may take (0 for any), and
                `max_attempts`.

        Returns:
            Whether the worker holds the trial still, and if not, why.
        """
        with self._lock:
            lease = self._leases.get(id)
            if lease is not None and (lease.worker, lease.attempt) == (worker, attempt):
                now = self._clock()
                if progress != lease.progress:
                    lease.progress, lease.progressed = progress, now
                self._take_terms(lease, terms)
                if now < lease.expires:
                    lease.expires = now + self._seconds
            self._reap()
            lease = self._leases.get(id)
            held = lease is not None and (lease.worker, lease.attempt) == (worker, attempt)
            return {'held': held, 'reason': '' if held else self._whose(id)}

    def lose(
        self, worker: str, reason: str, counts: bool, is_dead: bool, max_attempts: int
    ) -> dict[str, Any]:
        """Takes the trial that a worker holds from it: see `paxtune.study.trial_state.lose`.

        Returns:
            The number of the trial, None if it holds none, and the trial's state now.
        """
        with self._lock:
            self._reap()
            self._refresh()
            if self._turn_of == worker:
                self._end_turn()
            for id_, lease in list(self._leases.items()):
                if lease.worker == worker:
                    loss = Loss(reason, counts, is_dead)
                    changed = self._lose(id_, lease, loss, max_attempts)
                    return {'trial': id_, 'state': STATES[changed.state]}
            return {'trial': None, 'state': ''}

    def revoked(self, workers: list[str]) -> dict[str, Any]:
        """Those of some workers that have lost a trial because they were silent, or stood still."""
        with self._lock:
            self._reap()
            return {'workers': [worker for worker in workers if worker in self._revoked]}

    @property
    def num_leases(self) -> int:
        """How many trials are held."""
        return len(self._leases)

    def _hand_out(self, proto: TrialProto, worker: str) -> None:
        prefetch.note_start(proto, self._rows.all_unended)
        trial_state.hand_out(proto, worker)

    def _take_up(self, workers_may_live: bool) -> None:
        for id_ in self._rows.unended(TrialProto.State.ACTIVE):
            proto = self._rows.read(id_)
            if trial_state.holder(proto):
                self._grant(proto, {})
                if not workers_may_live:
                    lease = self._leases[id_]
                    loss = Loss('the search ended, or was killed', is_dead=True)
                    self._lose(id_, lease, loss, lease.max_attempts)

    def _grant(self, proto: TrialProto, terms: Mapping[str, float]) -> None:
        now = self._clock()
        lease = Lease(
            trial_state.holder(proto),
            trial_state.attempt(proto),
            now + self._seconds,
            progressed=now,
        )
        self._take_terms(lease, terms)
        self._leases[int(proto.id)] = lease

    def _take_terms(self, lease: Lease, terms: Mapping[str, float]) -> None:
        lease.timeout = float(terms.get('trial_timeout', lease.timeout))
        lease.max_attempts = int(terms.get('max_attempts', lease.max_attempts))

    def _reap(self) -> None:
        """Takes trials from workers that are silent, or stand still."""
        now = self._clock()
        for id_, lease in list(self._leases.items()):
            if now >= lease.expires:
                loss = Loss(f'its worker was not heard of for {self._seconds:g} s')
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
                raise Refused('fenced', self._whose(int(current.id)))
            return
        if (lease.worker, lease.attempt) != (worker, attempt):
            raise Refused('fenced', self._whose(int(current.id)))

    def _whose(self, id_: int) -> str:
        lease = self._leases.get(id_)
        if lease is not None:
            return f'trial {id_} is held by {lease.worker}, attempt {lease.attempt}'
        return f'trial {id_} is held by nobody' if id_ in self._rows else f'trial {id_} is gone'

    def _change(self, id_: int, change: Callable[[TrialProto], None]) -> TrialProto:
        changed = self._store.update_trial(id_, change)
        self._rows.put(changed)
        return changed

    def _refresh(self) -> None:
        """Reads everything again where another process has written to the database."""
        if self._rows.refresh():
            self._spec = None
            self._leases = {id_: each for id_, each in self._leases.items() if id_ in self._rows}


def digest(content: bytes) -> str:
    """What a client names the bytes by that it has read."""
    return hashlib.sha256(content).hexdigest()


class _ConflictError(Exception):
    """The row has changed since it was read."""


def _parsed(kind: Any, content: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise Refused('invalid', f'these bytes are no {kind.DESCRIPTOR.name}') from error


def _trial(content: bytes) -> TrialProto:
    proto = _parsed(TrialProto, content)
    if proto.state not in STATES:
        raise Refused('invalid', f'a trial has no state {proto.state}')
    try:
        if not all(
            type(event) is dict and type(event.get('event')) is str
            for event in trial_state.history(proto)
        ):
            raise ValueError('history')
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused('invalid', 'what is noted of the trial makes no sense') from error
    return proto
