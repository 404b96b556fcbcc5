"""Vizier's gRPC API over a database: see https://oss-vizier.readthedocs.io and `VizierService`.

Semantics and status codes follow Vizier's own servicer, except for INVALID_ARGUMENT in place of
UNKNOWN.
"""

import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import grpc
from google.longrunning import operations_pb2
from google.protobuf.message import DecodeError, Message
from vizier._src.service import study_pb2
from vizier._src.service import vizier_service_pb2 as pb

from paxtune.storage.codec import TrialProto, is_own, merge_metadata, without_own_metadata
from paxtune.storage.database import OWNER, Database
from paxtune.storage.vizier_store import study_protos
from paxtune.vizier_service import names
from paxtune.vizier_service.errors import VizierError, immutable, invalid, not_found
from paxtune.vizier_service.operations import Operations
from paxtune.vizier_service.study import VizierStudy
from trainer.symbolic.errors import UserError

SERVICE = 'vizier.VizierService'
"""The gRPC service of the methods."""

_KEPT_STUDIES = 100  # With their trials, in memory.
_MAX_COUNT = 1000
_RUNNING = TrialProto.State.ACTIVE, TrialProto.State.STOPPING
_ENDED = TrialProto.State.SUCCEEDED, TrialProto.State.INFEASIBLE

Rights: TypeAlias = Callable[[str], bool]
"""Returns True if the caller may use a study, which is named as in `names.key`."""


class VizierService:
    """Answers the calls of Vizier's clients. Thread-safe; knows no connection.

    Example:
        >>> service = VizierService(Database(None))
        >>> study = study_pb2.Study(display_name='mine')
        >>> request = pb.CreateStudyRequest(parent='owners/me', study=study)
        >>> reply = service.answer('CreateStudy', request.SerializeToString())
        >>> study_pb2.Study.FromString(reply).name
        'owners/me/studies/mine'
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._operations = Operations()
        self._is_stopping = False
        # The last used ones; a study in use stays the same object.
        self._kept: OrderedDict[str, VizierStudy] = OrderedDict()
        self._open: weakref.WeakValueDictionary[str, VizierStudy] = weakref.WeakValueDictionary()

    def answer(self, method: str, data: bytes, may_use: Rights = lambda study: True) -> bytes:
        """Executes a request, and returns the reply.

        Args:
            method: one of `METHODS`.
            may_use: the rights of the caller.

        Raises:
            VizierError: the call fails.
        """
        kind = METHODS[method]
        try:
            request = kind.request.FromString(data)
        except DecodeError as error:
            raise invalid(f'the request is no {kind.request.__name__}') from error
        if not kind.field:
            return _encoded(kind.run(self, request, may_use))
        name = getattr(request, kind.field)
        study, number = name, 0
        if kind.is_trial:
            study, number = names.trial_of(name)
        _require(may_use, *names.study_of(study))
        opened = self._study(study)
        return _encoded(kind.run(self, request, opened, number))

    def stop(self) -> None:
        """Ends calls for many suggestions early. Their clients get the trials they have made."""
        self._is_stopping = True

    def _study(self, name: str) -> VizierStudy:
        with self._lock:
            found = self._open.get(name)
            if found is None:
                found = self._open[name] = VizierStudy(self._database, name)
            self._kept[name] = found
            self._kept.move_to_end(name)
            if len(self._kept) > _KEPT_STUDIES:
                self._kept.popitem(last=False)
            return found

    # Studies.

    def create_study(self, request: Any, may_use: Rights) -> Message:
        """Creates a study, or loads the existing one of its display name."""
        owner, new = names.owner_of(request.parent), request.study
        if new.name:
            raise invalid('the service names a study: leave its name empty')
        _require(may_use, owner, names.part(new.display_name, 'display_name'))
        if len(names.key(owner, new.display_name)) > 200:
            raise invalid('the names of owner and study have at most 200 characters together')
        study = self._study(f'owners/{owner}/studies/{new.display_name}')
        # Coordinators expect studies with an experiment from their own owner.
        if owner != OWNER:
            study.create(new)
        return study.proto()

    def list_studies(self, request: Any, may_use: Rights) -> Message:
        """Lists the studies of an owner that the caller may use."""
        owner = names.owner_of(request.parent)
        try:
            found = study_protos(self._database, owner)
        except KeyError:
            if may_use(''):
                raise not_found(f'owner {owner}') from None
            found = []  # Who may use some studies does not learn which owners there are.
        allowed = [each for each in found if may_use(names.key(*names.study_of(each.name)))]
        return pb.ListStudiesResponse(studies=allowed)

    def get_study(self, request: Any, study: VizierStudy, _: int) -> Message:
        return study.proto()

    def delete_study(self, request: Any, study: VizierStudy, _: int) -> None:
        """Deletes a study with its trials."""
        if is_own(study.proto().study_spec):
            study.require_mutable()
        with study.suggesting:
            study.delete()

    def set_study_state(self, request: Any, study: VizierStudy, _: int) -> Message:
        """Ends a study, or opens it again."""
        if is_own(study.proto().study_spec):
            study.require_mutable()
        if request.state not in study_pb2.Study.State.values():
            raise invalid(f'there is no state {request.state}')

        def change(proto: study_pb2.Study) -> None:
            proto.state = request.state

        return study.update(change)

    def update_metadata(self, request: Any, study: VizierStudy, _: int) -> Message:
        """Merges metadata into a study and its trials: all of it, or nothing."""
        study.require_mutable()
        items = [each.metadatum for each in request.delta]
        if len(without_own_metadata(items)) < len(items):
            raise invalid("the namespace is the service's own")
        on_study = [each.metadatum for each in request.delta if not each.HasField('trial_id')]
        on_trials: dict[int, list[Any]] = {}
        for each in request.delta:
            if each.HasField('trial_id'):
                name = f'{request.name}/trials/{each.trial_id}'
                on_trials.setdefault(names.trial_of(name)[1], []).append(each.metadatum)
        try:
            with study.changing():
                study.update(lambda proto: merge_metadata(proto.study_spec, on_study))
                for number, added in on_trials.items():
                    study.change(number, functools.partial(merge_metadata, added=added))
        except VizierError as error:  # Vizier's clients expect it here.
            return pb.UpdateMetadataResponse(error_details=str(error))
        return pb.UpdateMetadataResponse()

    # Suggestions.

    def suggest_trials(self, request: Any, study: VizierStudy, _: int) -> Message:
        """Hands a client its ACTIVE trials, then REQUESTED ones, then new ones."""
        client = names.part(request.client_id, 'client_id')
        count = request.suggestion_count or 1
        if not 1 <= count <= _MAX_COUNT:
            raise invalid(f'suggestion_count: expected 1 to {_MAX_COUNT}, not {count}')
        error = ''
        with study.suggesting:
            if is_own(study.proto().study_spec):
                # A client takes FAILED_PRECONDITION for the end of the study.
                error = f'{request.parent} is a study of paxtune: only its workers get trials'
                return self._operations.finish(request.parent, client, [], error)
            spec = study.require_mutable()
            found = _waiting(study, client, count)
            try:
                while len(found) < count:
                    if self._is_stopping:
                        raise VizierError(grpc.StatusCode.UNAVAILABLE, 'the service is stopping')
                    new = study.suggest(spec)
                    if new is None:
                        break
                    new.state, new.client_id = TrialProto.State.ACTIVE, client
                    found.append(study.add(new))
            except UserError as reason:
                error = '' if found else str(reason)
            return self._operations.finish(request.parent, client, found, error)

    def get_operation(self, request: Any, may_use: Rights) -> Message:
        """Returns a suggestion of the last ones, which has ended."""
        _require(may_use, *names.study_of_operation(request.name))
        return self._operations.get(request.name)

    # Trials.

    def create_trial(self, request: Any, study: VizierStudy, _: int) -> Message:
        """Adds an ended trial, or a trial for the next client."""
        trial = TrialProto()
        trial.CopyFrom(request.trial)
        trial.ClearField('client_id')
        del trial.metadata[:]
        trial.metadata.extend(without_own_metadata(request.trial.metadata))
        if trial.state not in _ENDED:
            trial.state = TrialProto.State.REQUESTED
        with study.suggesting:
            study.require_mutable()
            return study.add(trial)

    def get_trial(self, request: Any, study: VizierStudy, number: int) -> Message:
        return study.trial(number)

    def list_trials(self, request: Any, study: VizierStudy, _: int) -> Message:
        return pb.ListTrialsResponse(trials=_sorted(study))

    def list_optimal_trials(self, request: Any, study: VizierStudy, _: int) -> Message:
        """Lists the best trials: the Pareto front of several metrics."""
        from paxtune.vizier_service.metrics import optimal

        spec = study.proto().study_spec
        return pb.ListOptimalTrialsResponse(optimal_trials=optimal(spec, _sorted(study)))

    def add_trial_measurement(self, request: Any, study: VizierStudy, number: int) -> Message:
        """Adds a measurement; one of an infeasible trial is dropped."""

        def change(trial: TrialProto) -> None:
            if trial.state == TrialProto.State.INFEASIBLE:
                return
            _require_running(trial)
            trial.measurements.append(request.measurement)

        study.require_mutable()
        return study.change(number, change)

    def complete_trial(self, request: Any, study: VizierStudy, number: int) -> Message:
        """Ends a trial, with the given final measurement or its last one."""

        def change(trial: TrialProto) -> None:
            _require_running(trial)
            trial.state = TrialProto.State.SUCCEEDED
            if request.final_measurement.metrics:
                trial.final_measurement.CopyFrom(request.final_measurement)
            elif trial.measurements and not request.trial_infeasible:
                trial.final_measurement.CopyFrom(trial.measurements[-1])
            elif not request.trial_infeasible:
                raise invalid('the trial has no measurement, and the request has none')
            if request.trial_infeasible:
                trial.state = TrialProto.State.INFEASIBLE
                trial.infeasible_reason = request.infeasible_reason
            trial.end_time.GetCurrentTime()

        study.require_mutable()
        return study.change(number, change)

    def delete_trial(self, request: Any, study: VizierStudy, number: int) -> None:
        with study.suggesting:
            study.require_mutable()
            study.remove(number)

    def check_trial_early_stopping_state(
        self, request: Any, study: VizierStudy, number: int
    ) -> Message:
        """Says if a running trial should stop, by the median rule."""
        from paxtune.vizier_service.stopping import should_stop

        spec = study.require_mutable()
        trials = study.trials
        trial = trials.pop(number, None) or study.trial(number)
        _require_running(trial)
        stop = should_stop(spec, trial, list(trials.values()))
        return pb.CheckTrialEarlyStoppingStateResponse(should_stop=stop)

    def stop_trial(self, request: Any, study: VizierStudy, number: int) -> Message:
        """Marks a running trial, so that its client ends it."""

        def change(trial: TrialProto) -> None:
            if trial.state == TrialProto.State.ACTIVE:
                trial.state = TrialProto.State.STOPPING
            elif trial.state not in (TrialProto.State.STOPPING, TrialProto.State.SUCCEEDED):
                raise immutable(f'{trial.name} is {TrialProto.State.Name(trial.state)}')

        study.require_mutable()
        return study.change(number, change)


class Method(NamedTuple):
    """A method of the service.

    Attributes:
        request: its kind of request.
        run: executes a request; None is an empty reply.
        role: of its caller, at least: a name of `paxtune.service.schema.Role`.
        field: of the request, with the name of a study or a trial; '' where `run` looks itself.
        is_trial: True for the name of a trial.
    """

    request: type[Any]
    run: Callable[..., Message | None]
    role: Literal['READ', 'WORK', 'ADMIN']
    field: str = ''
    is_trial: bool = False


METHODS = {
    'CreateStudy': Method(pb.CreateStudyRequest, VizierService.create_study, 'ADMIN'),
    'GetStudy': Method(pb.GetStudyRequest, VizierService.get_study, 'READ', 'name'),
    'ListStudies': Method(pb.ListStudiesRequest, VizierService.list_studies, 'READ'),
    'DeleteStudy': Method(pb.DeleteStudyRequest, VizierService.delete_study, 'ADMIN', 'name'),
    'SetStudyState': Method(
        pb.SetStudyStateRequest, VizierService.set_study_state, 'ADMIN', 'parent'
    ),
    'SuggestTrials': Method(
        pb.SuggestTrialsRequest, VizierService.suggest_trials, 'WORK', 'parent'
    ),
    'GetOperation': Method(operations_pb2.GetOperationRequest, VizierService.get_operation, 'READ'),
    'CreateTrial': Method(pb.CreateTrialRequest, VizierService.create_trial, 'WORK', 'parent'),
    'GetTrial': Method(pb.GetTrialRequest, VizierService.get_trial, 'READ', 'name', True),
    'ListTrials': Method(pb.ListTrialsRequest, VizierService.list_trials, 'READ', 'parent'),
    'AddTrialMeasurement': Method(
        pb.AddTrialMeasurementRequest,
        VizierService.add_trial_measurement,
        'WORK',
        'trial_name',
        True,
    ),
    'CompleteTrial': Method(
        pb.CompleteTrialRequest, VizierService.complete_trial, 'WORK', 'name', True
    ),
    'DeleteTrial': Method(pb.DeleteTrialRequest, VizierService.delete_trial, 'ADMIN', 'name', True),
    'CheckTrialEarlyStoppingState': Method(
        pb.CheckTrialEarlyStoppingStateRequest,
        VizierService.check_trial_early_stopping_state,
        'READ',
        'trial_name',
        True,
    ),
    'StopTrial': Method(pb.StopTrialRequest, VizierService.stop_trial, 'WORK', 'name', True),
    'ListOptimalTrials': Method(
        pb.ListOptimalTrialsRequest, VizierService.list_optimal_trials, 'READ', 'parent'
    ),
    'UpdateMetadata': Method(
        pb.UpdateMetadataRequest, VizierService.update_metadata, 'WORK', 'name'
    ),
}
"""The methods of the service."""

WAITING = frozenset({'SuggestTrials', 'CreateTrial', 'DeleteTrial', 'DeleteStudy'})
"""The methods that wait until all other suggestions for their study are made."""


def _encoded(message: Message | None) -> bytes:
    return b'' if message is None else message.SerializeToString()


def _require(may_use: Rights, owner: str, study: str) -> None:
    key = names.key(owner, study)
    if not may_use(key):
        raise VizierError(grpc.StatusCode.PERMISSION_DENIED, f'the token is not for {key!a}')


def _sorted(study: VizierStudy) -> list[TrialProto]:
    return [trial for _, trial in sorted(study.trials.items())]


def _waiting(study: VizierStudy, client: str, count: int) -> list[TrialProto]:
    """Returns the ACTIVE trials of a client; gives it REQUESTED ones if these are too few."""
    trials = _sorted(study)
    states = TrialProto.State
    own = [each for each in trials if each.state == states.ACTIVE and each.client_id == client]
    requested = [each for each in trials if each.state == states.REQUESTED]

    def take(trial: TrialProto) -> None:
        trial.state, trial.client_id = states.ACTIVE, client
        trial.start_time.GetCurrentTime()

    missing = max(0, count - len(own))
    return own[:count] + [study.change(int(each.id), take) for each in requested[:missing]]


def _require_running(trial: TrialProto) -> None:
    if trial.state not in _RUNNING:
        state = TrialProto.State.Name(trial.state)
        raise immutable(f'{trial.name} is {state}; it must be ACTIVE or STOPPING')
