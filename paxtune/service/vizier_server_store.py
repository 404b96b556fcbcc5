"""A study in any Vizier server, through the API of Vizier's clients.

The metadata of a trial hold its whole record, which one call replaces. Vizier's own fields are a
copy for people and for Vizier's clients: parameters, state, measurements, the final measurement. A
kill between the two is made up for when the search continues.

The API has neither leases nor compare-and-swap. One search writes: the newest one, which the
metadata of the study name. Others see that before their next write, and stop.
"""

import contextlib
import dataclasses
import datetime
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from vizier._src.service import study_pb2

from paxtune.service.address import Service
from paxtune.service.connection import ServiceFailedError
from paxtune.service.vizier_client import FLAG, MissingError, VizierClient
from paxtune.storage import codec
from paxtune.storage.claims import next_claim
from paxtune.storage.codec import StudySpec, TrialProto
from paxtune.study import transitions
from paxtune.study.record import RequestIds, StudyRecord, TrialRecord
from paxtune.study.sound_trials import SoundTrials
from paxtune.study.store import AddSuggested, Reading, StudyStore
from paxtune.study.transitions import LeaseLostError, Transition, TurnLostError
from trainer.symbolic.errors import UserError

_States = TrialProto.State
_ENDED = _States.SUCCEEDED, _States.INFEASIBLE


@dataclasses.dataclass(frozen=True)
class _Kept:
    record: TrialRecord
    copy: TrialProto  # In Vizier's own fields, as the server has it.


class VizierServerStore(StudyStore):
    """A study in a Vizier server: a `StudyStore` for one search at a time. Thread-safe.

    Attributes:
        worker: the name of this process.
    """

    is_shared = False

    def __init__(self, service: Service) -> None:
        """Calls nothing yet; raises UserError if the address or the name is invalid."""
        self._client = VizierClient(service)
        self._where = f'{service.endpoint}/{service.study}'
        self._flags = [f'{FLAG}{service.endpoint}', f'--study={service.study}']
        self.worker = transitions.new_worker()
        self._lock = threading.RLock()
        remedy = f'A client of Vizier deletes it ({self._client.study_name}).'
        self._sound, self._newest = SoundTrials(self._where, remedy), 0
        self._trials: dict[int, _Kept] | None = None  # Kept by the one search that writes.

    @property
    def flags(self) -> list[str]:
        return self._flags

    def connect(self) -> None:
        """Waits for the server to be ready; raises UnavailableError after some seconds."""
        self._client.connect()

    def close(self) -> None:
        self._client.close()

    def take_over(self) -> None:
        """Makes this search the only writer, and copies trials that the last one has not copied."""
        with self._lock:
            self._client.write(codec.driver_metadata(self.worker).metadata)
            self._trials = self._read()
            for kept in list(self._trials.values()):
                self._keep(codec.client_trial(kept.record), kept.copy)

    def is_alive(self, worker: str) -> bool:
        return bool(worker) if self._trials is None else worker == self.worker

    def study(self) -> StudyRecord | None:
        found = self._client.repeat(self._client.study)
        if found is None:
            return None
        self._require_driver(found.study_spec)
        record = codec.decode_client_study(found.study_spec, self._where)
        with self._lock:
            stopping = {id_ for id_, kept in (self._trials or {}).items() if _is_stopping(kept)}
        requests = tuple(sorted({*record.stop_requests, *stopping}))
        return dataclasses.replace(record, stop_requests=requests)

    def _require_driver(self, spec: StudySpec) -> None:
        driver = codec.client_driver(spec)
        if self._trials is not None and driver != self.worker:
            raise LeaseLostError(f'another search, {driver}, has taken over {self._where}')

    def _require_own(self) -> study_pb2.Study:
        """Returns the study; raises LeaseLostError if another search writes to it by now."""
        found = self._client.repeat(self._client.study)
        if found is None:
            raise KeyError(self._where)
        self._require_driver(found.study_spec)
        return found

    def created(self) -> datetime.datetime:
        time: datetime.datetime = self._require_own().create_time.ToDatetime(datetime.UTC)
        return time

    def create_study(self, record: StudyRecord, parameters: Iterable[Any]) -> bool:
        spec = codec.client_study(record, parameters)
        there = self._client.repeat(lambda: self._client.create_study(spec)).study_spec
        return codec.decode_client_study(there, self._where).uuid == record.uuid

    def update_study(self, change: Callable[[StudyRecord], StudyRecord]) -> StudyRecord:
        with self._lock:
            spec = self._require_own().study_spec
            changed = change(codec.decode_client_study(spec, self._where))
            self._client.write(codec.client_study(changed).metadata)
            return changed

    def delete_study(self) -> None:
        self.refuse()

    def delete_trial(self, id_: int) -> None:
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raises the UserError of all that needs a transaction, or excludes the search."""
        raise UserError(
            f'{FLAG}{self._where}: only its search changes a study in a Vizier server, since the '
            'API of Vizier cannot exclude that search meanwhile. list, show, trials, best, pareto, '
            'diff, lineage, export and curves read it'
        )

    def _all(self) -> dict[int, _Kept]:
        return self._read() if self._trials is None else self._trials

    def _read(self) -> dict[int, _Kept]:
        copies = {int(copy.id): copy for copy in self._client.repeat(self._client.trials)}
        read = self._sound.read(sorted(copies.items()), codec.decode_client_trial)
        self._newest = max(copies, default=0)
        return {record.id: _Kept(record, copies[record.id]) for record in read}

    def ids(self) -> list[int]:
        with self._lock:
            return list(self._all())

    def max_id(self) -> int:
        with self._lock:
            return max([self._newest, *self._all()])

    def read(self, has_ended: Callable[[int], bool], since: object = None) -> Reading:
        with self._lock:
            found = self._all()
            unknown = [kept.record for id_, kept in found.items() if not has_ended(id_)]
            return Reading(None, sorted({*found, self._newest} - {0}), unknown)

    def trials(self, ids: Collection[int] | None = None) -> list[TrialRecord]:
        with self._lock:
            found = self._all().items()
            return [kept.record for id_, kept in found if ids is None or id_ in ids]

    def trial(self, id_: int) -> TrialRecord:
        with self._lock:
            return self._all()[id_].record

    def add_trials(
        self, records: Sequence[TrialRecord], after: int | None = None
    ) -> list[TrialRecord]:
        if len(records) > 1:
            raise UserError(
                f'{FLAG}{self._where}: several trials cannot be added at once (--fork_study), '
                'since the API of Vizier has no transactions'
            )
        with self._lock:
            self._require_own()
            if after not in (None, self.max_id()):
                raise TurnLostError('trials were added in the meantime')
            return [self._add(record) for record in records]

    def _add(self, record: TrialRecord) -> TrialRecord:
        number, key = self.max_id() + 1, uuid.uuid4().hex
        trial = codec.client_trial(
            dataclasses.replace(record, id=number, created=self.now(), requests=RequestIds(key))
        )
        is_first = True

        def add() -> TrialProto:
            nonlocal is_first
            added = [] if is_first else self._client.trials()
            is_first = False
            # The reply to the first call may have been lost.
            there = [each for each in added if list(each.metadata) == list(trial.metadata)]
            created: TrialProto = (
                there[0]
                if there
                else self._client.once('CreateTrial', parent=self._client.study_name, trial=trial)
            )
            return created

        copy = self._client.repeat(add)
        if copy.id != str(number):
            name = self._client.trial_name(int(copy.id))
            self._client.repeat(lambda: self._client.once('DeleteTrial', name=name))
            raise LeaseLostError(f'another client has added trial {number} of {self._where}')
        return self._keep(trial, copy)

    def apply(self, id_: int, transition: Transition) -> TrialRecord:
        with self._lock:
            kept = self._all()[id_]
            self._require_own()
            trial = codec.client_trial(transitions.applied(transition, kept.record, self.now()))
            self._client.write(trial.metadata, id_)
            return self._keep(trial, kept.copy)

    def claim(self, among: Collection[int]) -> TrialRecord | None:
        with self._lock:
            found = next_claim(self.trials(among), self.worker, self.is_alive)
            return None if found is None else self.apply(*found)

    @contextlib.contextmanager
    def turn(self) -> Iterator[AddSuggested]:
        yield lambda suggested: self.add_trials([suggested], after=suggested.id - 1)[0]

    def _keep(self, trial: TrialProto, copy: TrialProto) -> TrialRecord:
        """Keeps a trial that was written, and has Vizier's own fields follow."""
        assert self._trials is not None
        record = codec.decode_client_trial(trial)
        self._trials[record.id] = _Kept(record, copy)
        self._trials[record.id] = _Kept(record, self._copied(trial, record.id, copy))
        return record

    def _copied(self, trial: TrialProto, number: int, copy: TrialProto) -> TrialProto:
        current: TrialProto | None = copy

        def attempt() -> TrialProto:
            nonlocal current
            found = current or self._get(number)
            current = None  # A reply may be lost: a retry reads the trial first.
            return self._advanced(trial, number, found)

        return self._client.repeat(attempt)

    def _advanced(self, trial: TrialProto, number: int, copy: TrialProto) -> TrialProto:
        name = self._client.trial_name(number)
        if copy.state in _ENDED or trial.state == _States.REQUESTED:
            return copy
        if copy.state == _States.REQUESTED:
            copy = self._activated(number)
        there = {each.step_count for each in copy.measurements}
        for each in (each for each in trial.measurements if each.step_count not in there):
            copy = self._client.once('AddTrialMeasurement', trial_name=name, measurement=each)
        if trial.state == _States.SUCCEEDED:
            final = trial.final_measurement
            copy = self._client.once('CompleteTrial', name=name, final_measurement=final)
        elif trial.state == _States.INFEASIBLE:
            copy = self._client.once(
                'CompleteTrial',
                name=name,
                trial_infeasible=True,
                infeasible_reason=trial.infeasible_reason,
            )
        return copy

    def _activated(self, number: int) -> TrialProto:
        # Only a suggestion makes a trial ACTIVE. It takes waiting trials first, from the newest: a
        # client that asks for their number gets all of them, and no others.
        waiting = [each for each in self._client.trials() if each.state == _States.REQUESTED]
        if any(each.id == str(number) for each in waiting):
            operation = self._client.once(
                'SuggestTrials',
                parent=self._client.study_name,
                suggestion_count=len(waiting),
                client_id=f'{self.worker}-{uuid.uuid4().hex[:8]}',
            )
            if operation.HasField('error'):
                raise ServiceFailedError(f'{self._where}: {operation.error.message}')
        return self._get(number)

    def _get(self, number: int) -> TrialProto:
        try:
            found: TrialProto = self._client.once('GetTrial', name=self._client.trial_name(number))
        except MissingError as error:
            raise ServiceFailedError(f'{self._where}: another client deleted trial {number}') from (
                error
            )
        return found


def _is_stopping(kept: _Kept) -> bool:
    return kept.copy.state == _States.STOPPING and not kept.record.status.has_ended
