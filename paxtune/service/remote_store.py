"""A study that is kept by a service, as if it were here."""

import contextlib
import dataclasses
import datetime
import random
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from paxtune.service.client import Client
from paxtune.service.coordinator import digest
from paxtune.service.schema import RequestRejectedError
from paxtune.storage.vizier_store import StudySpec, TrialProto, notes
from paxtune.study import trial_state
from paxtune.study.trial_state import LeaseLostError, Loss, TurnLostError


def lose(client: Client, worker: str, loss: Loss, max_attempts: int) -> int | None:
    """Takes from a worker the trial that it has: see `paxtune.study.trial_state.lose`.

    Returns:
        The number of the trial; None where it had none.
    """
    answer = client.call(
        'lose', worker=worker, **dataclasses.asdict(loss), max_attempts=max_attempts
    )
    trial: int | None = answer['trial']
    return trial


_MAX_ADDED = 500  # In one message, which must not be too long.
_LONGEST_WAIT = 16.0  # Times what the service says.


class RemoteStore:
    """A study in a service, with the methods of `Store`, and what workers need beside them.

    Trials that were read are kept: of each call only what has changed goes over the wire.

    Attributes:
        worker: this worker's name; trials are leased to it.
        terms: see `StudyCoordinator.heartbeat`.
    """

    is_shared = True

    def __init__(self, client: Client, worker: str = '') -> None:
        """Makes the store of a client's study.

        Args:
            client: connected to the service.
            worker: a name that no other process has; '' for one that runs no trials.
        """
        self._client, self.worker = client, worker
        self.terms: dict[str, float] = {}
        self._lock = threading.RLock()
        self._generation, self._revision = '', 0
        self._content: dict[int, bytes] = {}
        self._held: dict[int, int] = {}
        self._lost: set[int] = set()  # Of those, whatever is written of them is refused.
        self._spec: StudySpec | None = None
        self._version, self._created = '', 0.0

    @property
    def flags(self) -> list[str]:
        """How commands are told where the study is."""
        return [f'--vizier_endpoint={self._client.endpoint}', f'--study={self._client.study}']

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def study(self) -> StudySpec | None:
        """As `Store.study`."""
        with self._lock:
            answer = self._client.call('study', known=self._version)
            self._version = answer['version']
            if not self._version:
                self._spec = None
            elif answer['spec'] is not None:
                self._spec = StudySpec.FromString(answer['spec'])
                self._created = answer['created']
            return self._spec

    def created(self) -> datetime.datetime:
        """As `Store.created`."""
        if self.study() is None:
            raise KeyError('study')
        return datetime.datetime.fromtimestamp(self._created, datetime.UTC)

    def create_study(self, study_spec: StudySpec) -> bool:
        """As `Store.create_study`."""
        answer = self._client.call('create_study', spec=study_spec.SerializeToString())
        return bool(answer['created'])

    def write_study_notes(self, notes: Mapping[str, str]) -> None:
        """As `Store.write_study_notes`."""
        self.update_study_notes(lambda _: notes)

    def update_study_notes(self, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """As `Store.update_study_notes`."""
        request = uuid.uuid4().hex
        while True:
            spec = self.study()
            if spec is None:
                raise KeyError('study')
            changed = dict(change(notes(spec)))
            call = {'expected': self._version, 'notes': changed, 'request': request}
            if self._client.call('write_notes', **call)['done']:
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
            # Nobody else changes what this worker holds.
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
            LeaseLostError: the trial is another worker's, or another attempt's.
        """
        request = uuid.uuid4().hex
        with self._lock:
            if id_ not in self._content:
                self._sync()
            while True:
                read = self._content[id_]
                trial = TrialProto.FromString(read)
                change(trial)
                held = self._held.get(id_)
                answer = self._change(
                    id=id_,
                    expected=digest(read),
                    trial=trial.SerializeToString(),
                    worker=self.worker if held else '',
                    attempt=held or 0,
                    request=request,
                )
                self._content[id_] = answer['trial']
                if answer['done']:
                    stored = TrialProto.FromString(answer['trial'])
                    if not trial_state.holder(stored):
                        self._held.pop(id_, None)
                    return stored

    def delete_trial(self, id_: int) -> None:
        """As `Store.delete_trial`."""
        try:
            self._client.call('delete', id=id_)
        except RequestRejectedError as refusal:
            if refusal.code != 'missing':
                raise
            raise KeyError(id_) from None

    def claim(self) -> TrialProto | None:
        """A trial to run that is there already; None where there is none. It is this worker's."""
        content = self._client.call('claim', worker=self.worker, terms=self.terms)['trial']
        return None if content is None else self._take(content)

    @contextlib.contextmanager
    def turn(self) -> Iterator[Callable[[TrialProto], TrialProto]]:
        """Waits for the turn to suggest, which is this worker's while inside.

        What it yields adds the trial that was suggested, and gives it to this worker.
        """
        longer = 1.0
        while not (answer := self._client.call('acquire_suggest_lock', worker=self.worker))[
            'suggest_lock'
        ]:
            time.sleep(longer * answer['wait'] * random.uniform(0.5, 1.0))
            longer = min(2 * longer, _LONGEST_WAIT)
        suggest_lock = answer['suggest_lock']

        def add(trial: TrialProto) -> TrialProto:
            nonlocal suggest_lock
            added = self._add([trial], suggest_lock)[0]
            suggest_lock = ''  # It has ended.
            return added

        try:
            yield add
        finally:
            if suggest_lock:
                self._client.call('release_suggest_lock', suggest_lock=suggest_lock)

    def lose(self, id_: int, loss: Loss, max_attempts: int, step: int = 0) -> TrialProto:
        """Gives back a trial of this worker: see `paxtune.study.trial_state.lose`."""
        with self._lock:
            lose(self._client, self.worker, loss, max_attempts)
            self._held.pop(id_, None)
        return self.trial(id_)

    def heartbeat(self, progress: int) -> str | None:
        """Renews the leases of the trials that this worker has.

        Args:
            progress: how many steps it has done, of whatever trial.

        Returns:
            Why the worker has lost one; None where it has not.
        """
        # A trial that ends while this is under way would look like one that was lost.
        with self._lock:
            for id_, attempt in self._held.items():
                answer = self._client.call(
                    'heartbeat',
                    worker=self.worker,
                    id=id_,
                    attempt=attempt,
                    progress=progress,
                    terms=self.terms,
                )
                if not answer['held']:
                    self._lost.add(id_)
                    return f'{answer["reason"]}'
        return None

    def _change(self, **call: Any) -> dict[str, Any]:
        try:
            return self._client.call('update', **call)
        except RequestRejectedError as refusal:
            if refusal.code == 'fenced':
                self._lost.add(call['id'])
                raise LeaseLostError(str(refusal)) from None
            if refusal.code == 'missing':
                raise KeyError(call['id']) from None
            raise

    def _add(self, trials: Sequence[TrialProto], suggest_lock: str) -> list[TrialProto]:
        content = [trial.SerializeToString() for trial in trials]
        try:
            answer = self._client.call(
                'add', trials=content, suggest_lock=suggest_lock, worker=self.worker
            )
        except RequestRejectedError as refusal:
            if refusal.code == 'conflict':
                raise TurnLostError(str(refusal)) from None
            raise
        return [self._take(content) for content in answer['trials']]

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
            answer: dict[str, Any] = self._client.call(
                'changes', generation=self._generation, since=self._revision
            )
            if answer['reset']:
                self._content.clear()
            self._generation, self._revision = answer['generation'], answer['revision']
            for id_ in answer['deleted']:
                self._content.pop(id_, None)
            for content in answer['trials']:
                self._content[int(TrialProto.FromString(content).id)] = content
            more = answer['more']
