"""Store of a study in a service."""

import contextlib
import dataclasses
import datetime
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import tenacity

from paxtune.service import schema
from paxtune.service.client import Client
from paxtune.service.coordinator import digest
from paxtune.service.schema import RequestRejectedError, WorkerOptions
from paxtune.storage.vizier_store import StudySpec, TrialProto, notes
from paxtune.study import trial_state
from paxtune.study.trial_state import LeaseLostError, Loss, TurnLostError


def lose(client: Client, worker: str, loss: Loss, max_attempts: int) -> int | None:
    """Ends the lease of a worker: see `paxtune.study.trial_state.lose`.

    Returns:
        The number of its trial; None if it had none.
    """
    request = schema.LoseRequest(
        worker=worker, **dataclasses.asdict(loss), max_attempts=max_attempts
    )
    return client.call(request).trial


_MAX_ADDED = 500  # In one message, whose size is limited.
_Reply = TypeVar('_Reply', schema.TrialsReply, schema.UpdateReply)


class RemoteStore:
    """A study in a service, with the methods of `Store` and those that workers need.

    It caches the trials, and fetches only changes.

    Attributes:
        worker: this worker's name; trials are leased to it.
        options: limits of this worker's trials; None before they are known.
    """

    is_shared = True

    def __init__(self, client: Client, worker: str = '') -> None:
        """Makes the store of a client's study.

        Args:
            client: the client.
            worker: a unique name; '' for a process that runs no trials.
        """
        self._client, self.worker = client, worker
        self.options: WorkerOptions | None = None
        self._lock = threading.RLock()
        self._generation, self._revision = '', 0
        self._content: dict[int, bytes] = {}
        self._held: dict[int, int] = {}
        self._lost: set[int] = set()  # The service rejects writes to these.
        self._spec: StudySpec | None = None
        self._version, self._created = '', 0.0

    @property
    def flags(self) -> list[str]:
        """Flags that select the study."""
        return [f'--vizier_endpoint={self._client.endpoint}', f'--study={self._client.study}']

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def study(self) -> StudySpec | None:
        """As `Store.study`."""
        with self._lock:
            reply = self._client.call(schema.StudyRequest(known=self._version))
            self._version = reply.version
            if not self._version:
                self._spec = None
            elif reply.spec is not None:
                self._spec = StudySpec.FromString(reply.spec)
                self._created = reply.created or 0.0
            return self._spec

    def created(self) -> datetime.datetime:
        """As `Store.created`."""
        if self.study() is None:
            raise KeyError('study')
        return datetime.datetime.fromtimestamp(self._created, datetime.UTC)

    def create_study(self, study_spec: StudySpec) -> bool:
        """As `Store.create_study`."""
        request = schema.CreateStudyRequest(spec=study_spec.SerializeToString())
        return self._client.call(request).done

    def write_study_notes(self, notes: Mapping[str, str]) -> None:
        """As `Store.write_study_notes`."""
        self.update_study_notes(lambda _: notes)

    def update_study_notes(self, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """As `Store.update_study_notes`."""
        request_id = uuid.uuid4().hex
        while True:
            spec = self.study()
            if spec is None:
                raise KeyError('study')
            changed = dict(change(notes(spec)))
            request = schema.WriteNotesRequest(
                expected=self._version, notes=changed, request_id=request_id
            )
            if self._client.call(request).done:
                return

    def ids(self) -> list[int]:
        """As `Store.ids`."""
        with self._lock:
            self._sync()
            return sorted(self._content)

    def trials(self, ids: Collection[int] | None = None) -> list[TrialProto]:
        """As `Store.trials`."""
        with self._lock:
            self._sync()
            wanted = sorted(self._content if ids is None else self._content.keys() & set(ids))
            return [TrialProto.FromString(self._content[id_]) for id_ in wanted]

    def read(self, known: Collection[int]) -> tuple[list[int], list[TrialProto]]:
        """As `Store.read`."""
        with self._lock:
            self._sync()
            numbers = sorted(self._content)
            unknown = [number for number in numbers if number not in known]
            return numbers, [TrialProto.FromString(self._content[number]) for number in unknown]

    def trial(self, id_: int) -> TrialProto:
        """As `Store.trial`."""
        with self._lock:
            # Only its owner changes a leased trial.
            if id_ not in self._held or id_ in self._lost:
                self._sync()
            return TrialProto.FromString(self._content[id_])

    def max_id(self) -> int:
        """As `Store.max_id`."""
        return max(self.ids(), default=0)

    def add_trial(self, trial: TrialProto) -> TrialProto:
        """As `Store.add_trial`."""
        return self._add([trial], '')[0]

    def add_trials(self, trials: Sequence[TrialProto]) -> None:
        """As `Store.add_trials`, a few hundred in a transaction."""
        for first in range(0, len(trials), _MAX_ADDED):
            self._add(trials[first : first + _MAX_ADDED], '')

    def update_trial(self, id_: int, change: Callable[[TrialProto], None]) -> TrialProto:
        """As `Store.update_trial`.

        Raises:
            LeaseLostError: another worker or attempt owns the trial.
        """
        request_id = uuid.uuid4().hex
        with self._lock:
            if id_ not in self._content:
                self._sync()
            while True:
                read = self._content[id_]
                trial = TrialProto.FromString(read)
                change(trial)
                held = self._held.get(id_)
                request = schema.UpdateRequest(
                    id=id_,
                    expected=digest(read),
                    trial=trial.SerializeToString(),
                    worker=self.worker if held else '',
                    attempt=held or 0,
                    request_id=request_id,
                )
                reply = self._write(request, id_)
                self._content[id_] = reply.trial
                if reply.done:
                    stored = TrialProto.FromString(reply.trial)
                    if not trial_state.holder(stored):
                        self._held.pop(id_, None)
                    return stored

    def delete_trial(self, id_: int) -> None:
        """As `Store.delete_trial`."""
        try:
            self._client.call(schema.DeleteRequest(id=id_))
        except RequestRejectedError as error:
            if error.code != 'missing':
                raise
            raise KeyError(id_) from None

    def claim(self) -> TrialProto | None:
        """Leases an existing trial that waits to be run; returns None if there is none."""
        request = schema.ClaimRequest(worker=self.worker, options=self.options)
        content = self._client.call(request).trial
        return None if content is None else self._take(content)

    @contextlib.contextmanager
    def turn(self) -> Iterator[Callable[[TrialProto], TrialProto]]:
        """Waits for the suggest lock, and holds it while entered.

        Yields a function that adds the suggested trial, and leases it to this worker.
        """
        polling = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda reply: not reply.suggest_lock),
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=0.4),
        )
        request = schema.AcquireSuggestLockRequest(worker=self.worker)
        suggest_lock = polling(self._client.call, request).suggest_lock

        def add(trial: TrialProto) -> TrialProto:
            nonlocal suggest_lock
            added = self._add([trial], suggest_lock)[0]
            suggest_lock = ''  # The service has released it.
            return added

        try:
            yield add
        finally:
            if suggest_lock:
                self._client.call(schema.ReleaseSuggestLockRequest(suggest_lock=suggest_lock))

    def lose(self, id_: int, loss: Loss, max_attempts: int, step: int = 0) -> TrialProto:
        """Gives back a trial of this worker: see `paxtune.study.trial_state.lose`."""
        with self._lock:
            lose(self._client, self.worker, loss, max_attempts)
            self._held.pop(id_, None)
        return self.trial(id_)

    def heartbeat(self, progress: int) -> str | None:
        """Renews the leases of this worker.

        Args:
            progress: the number of steps that it has done, of all trials.

        Returns:
            The reason why a lease was lost; None if none was.
        """
        # Without the lock, a trial that ends meanwhile would look like a lost one.
        with self._lock:
            for id_, attempt in self._held.items():
                request = schema.HeartbeatRequest(
                    worker=self.worker,
                    id=id_,
                    attempt=attempt,
                    progress=progress,
                    options=self.options,
                )
                reply = self._client.call(request)
                if not reply.held:
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

    def _add(self, trials: Sequence[TrialProto], suggest_lock: str) -> list[TrialProto]:
        request = schema.AddRequest(
            trials=[trial.SerializeToString() for trial in trials],
            suggest_lock=suggest_lock,
            worker=self.worker,
        )
        return [self._take(content) for content in self._write(request).trials]

    def _take(self, content: bytes) -> TrialProto:
        trial = TrialProto.FromString(content)
        with self._lock:
            self._content[int(trial.id)] = content
            if self.worker and trial_state.holder(trial) == self.worker:
                self._held[int(trial.id)] = trial_state.attempt(trial)
                self._lost.discard(int(trial.id))
        return trial

    def _sync(self) -> None:
        more = True
        while more:
            request = schema.ChangesRequest(generation=self._generation, since=self._revision)
            reply = self._client.call(request)
            if reply.reset:
                self._content.clear()
            self._generation, self._revision = reply.generation, reply.revision
            for id_ in reply.deleted:
                self._content.pop(id_, None)
            for content in reply.trials:
                self._content[int(TrialProto.FromString(content).id)] = content
            more = reply.more
