"""Clients of Vizier's API on the simulated network, and the invariants of their study."""

import functools
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.longrunning import operations_pb2
from google.protobuf.message import Message
from vizier._src.service import study_pb2
from vizier._src.service import vizier_service_pb2 as pb
from vizier._src.service.vizier_service_pb2_grpc import VizierServiceStub

from paxtune.storage.codec import TrialProto
from paxtune.storage.stored_parameters import read_parameters
from paxtune.vizier_service.suggestions import PlainSuggester
from tests.factories.vizier_searches import number
from tests.simulation.ledger import Ledger
from tests.simulation.machine import Machine
from tests.simulation.network import CallError, Channel
from tests.simulation.process import Process
from tests.simulation.world import EVERY, STEPS, World, truth

STUDY = 'owners/me/studies/plain'
_PATH = '/vizier.VizierService/'
_QUERY = 'SELECT trial_id, serialized_trial FROM trials WHERE owner_id = "me"'
_STUDY_QUERY = 'SELECT serialized_study FROM studies WHERE owner_id = "me"'
_DONE = 'done'
_STATES = TrialProto.State
_ENDED = _STATES.SUCCEEDED, _STATES.INFEASIBLE
_PASSING = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED
_SECONDS = 30.0


def spec() -> study_pb2.StudySpec:
    """The study of the clients."""
    made = study_pb2.StudySpec(
        algorithm='RANDOM_SEARCH', parameters=[number('a', 0.0, 1.0), number('b', 0.0, 5.0)]
    )
    made.metrics.add(metric_id='loss', goal='MINIMIZE')
    return made


class VizierClient(Machine):
    """A client that a person starts again until the study has its trials. It has no workers."""

    def __init__(self, num_trials: int, *args: Any) -> None:
        """Starts as any machine; it ends once the study has that many ended trials."""
        self._num_trials = num_trials
        super().__init__(*args)

    def _drive(self) -> int:
        study = study_pb2.Study(display_name='plain', study_spec=spec())
        self._call('CreateStudy', pb.CreateStudyRequest(parent='owners/me', study=study))
        while not self.driver.is_interrupted:
            if self._count_ended() >= self._num_trials:
                self.is_done = True
                return 0
            request = pb.SuggestTrialsRequest(parent=STUDY, client_id=self.name)
            operation = self._call('SuggestTrials', request)
            for trial in pb.SuggestTrialsResponse.FromString(operation.response.value).trials:
                self._train(trial)
        return 3

    def _count_ended(self) -> int:
        trials = self._call('ListTrials', pb.ListTrialsRequest(parent=STUDY)).trials
        return sum(each.state in _ENDED for each in trials)

    def _train(self, trial: TrialProto) -> None:
        world = self._world
        done = max((each.step_count for each in trial.measurements), default=0)
        loss = functools.partial(_measured, read_parameters(trial))
        for step in range(done + EVERY, STEPS + 1, EVERY):
            world.scheduler.sleep(world.draws.uniform(0.6, 6.0, 'step', self.name))
            if self.driver.is_interrupted:
                return
            request = pb.AddTrialMeasurementRequest(trial_name=trial.name, measurement=loss(step))
            self._call('AddTrialMeasurement', request)
        end = pb.CompleteTrialRequest(name=trial.name, final_measurement=loss(STEPS))
        self._call('CompleteTrial', end)
        update = pb.UpdateMetadataRequest(name=STUDY)
        for of_trial in (False, True):
            added = update.delta.add(trial_id=trial.id if of_trial else None)
            added.metadatum.key, added.metadatum.value = f'{_DONE} {trial.id}', self.name
        self._call('UpdateMetadata', update)

    def _call(self, name: str, request: Message) -> Any:
        """Calls a method until it answers, as Vizier's clients do.

        A call that an earlier one has made already is refused.
        """
        stub: Any = VizierServiceStub(Channel(self._world, self.driver))
        while True:
            try:
                return getattr(stub, name)(request, timeout=_SECONDS)
            except CallError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    return None
                if error.code() not in _PASSING:
                    raise
            self._world.scheduler.sleep(1.0)


class VizierLedger(Ledger):
    """Watches the commits of the study, and the replies to its clients."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: dict[int, TrialProto] = {}
        self._rows: sqlite3.Connection | None = None
        self._suggester = PlainSuggester(STUDY, spec())

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
        super().close()

    def committed(self) -> None:
        if self._rows is None:
            path = self._world.database
            self._rows = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        found = {id_: TrialProto.FromString(row) for id_, row in self._rows.execute(_QUERY)}
        for id_, after in found.items():
            if (before := self.trials.get(id_)) is None:
                self._check_new(id_, after)
            elif before != after:
                self._check_change(id_, before, after)
        if gone := self.trials.keys() - found.keys():
            self._world.violate('number', f'trials {sorted(gone)} are gone')
        self.trials = found
        self._check_holders()
        self._check_metadata()

    def _check_new(self, id_: int, trial: TrialProto) -> None:
        self._world.say(f'  trial {id_}: added for {trial.client_id}')
        if id_ != max(self.trials, default=0) + 1:
            self._world.violate('number', f'trial {id_} left a gap')
        expected = self._suggester.suggest([], id_)
        assert expected is not None
        if read_parameters(trial) != read_parameters(expected):
            self._world.violate('decisions', f'trial {id_}: {read_parameters(trial)}')

    def _check_change(self, id_: int, before: TrialProto, after: TrialProto) -> None:
        state, count = _STATES.Name(after.state), len(after.measurements)
        self._world.say(f'  trial {id_}: {state} of {after.client_id}, {count} measured')
        if before.client_id != after.client_id:
            self._world.violate('claimed twice', f'trial {id_}: by {after.client_id}')
        if [*after.measurements[: len(before.measurements)]] != [*before.measurements]:
            self._world.violate('measurements', f'trial {id_} lost a measurement')
        if before.state in _ENDED and _end(before) != _end(after):
            self._world.violate('ended twice', f'trial {id_} has changed after its end')

    def _check_holders(self) -> None:
        running = Counter(t.client_id for t in self.trials.values() if t.state == _STATES.ACTIVE)
        several = [client for client, count in running.items() if count > 1]
        if several:
            self._world.violate('given twice', f'{several} have several trials')

    def _check_metadata(self) -> None:
        assert self._rows is not None
        for (row,) in self._rows.execute(_STUDY_QUERY):
            for each in study_pb2.Study.FromString(row).study_spec.metadata:
                trial = self.trials[int(each.key.removeprefix(_DONE))]
                if each.key not in [item.key for item in trial.metadata]:
                    self._world.violate('metadata', f'{each.key} is on the study alone')

    def acknowledged(self, process: Process, path: str, request: bytes, reply: bytes) -> None:
        match path.removeprefix(_PATH):
            case 'SuggestTrials':
                self._check_given(process, pb.SuggestTrialsRequest.FromString(request), reply)
            case 'AddTrialMeasurement':
                added = pb.AddTrialMeasurementRequest.FromString(request)
                self._require(added.measurement in self._named(added.trial_name).measurements, path)
            case 'CompleteTrial':
                named = self._named(pb.CompleteTrialRequest.FromString(request).name)
                self._require(named.state == _STATES.SUCCEEDED, path)

    def _check_given(
        self, process: Process, request: pb.SuggestTrialsRequest, reply: bytes
    ) -> None:
        operation = operations_pb2.Operation.FromString(reply)
        for given in pb.SuggestTrialsResponse.FromString(operation.response.value).trials:
            stored = self.trials.get(int(given.id))
            is_own = stored is not None and stored.client_id == request.client_id
            self._require(is_own, f'trial {given.id} for {process.name}')

    def _named(self, name: str) -> TrialProto:
        return self.trials.get(int(name.rpartition('/')[2]), TrialProto())

    def _require(self, is_there: bool, what: str) -> None:
        if not is_there:
            self._world.violate('acknowledged', f'{what} is not there')


def check_trials(world: World, most: int) -> list[tuple[object, ...]]:
    """Checks the study at its end, and returns its trials."""
    trials: Sequence[TrialProto] = [*world.ledger.trials.values()]
    if len(trials) > most:
        world.violate('budget', f'{len(trials)} trials; at most {most}')
    for each in trials:
        expected = _measured(read_parameters(each), STEPS)
        if each.state == _STATES.SUCCEEDED and each.final_measurement != expected:
            world.violate('reward', f'trial {each.id}: {each.final_measurement}')
        steps = {measured.step_count for measured in each.measurements}
        if each.state == _STATES.SUCCEEDED and steps != {*range(EVERY, STEPS + 1, EVERY)}:
            world.violate('measurements', f'trial {each.id}: steps {steps}')
    return [(each.id, tuple(read_parameters(each).values()), each.state) for each in trials]


def _measured(decisions: Mapping[str, Any], step: int) -> study_pb2.Measurement:
    made = study_pb2.Measurement(step_count=step)
    made.metrics.add(metric_id='loss', value=truth(decisions, step))
    return made


def _end(trial: TrialProto) -> object:
    return trial.state, trial.final_measurement, trial.end_time, len(trial.measurements)
