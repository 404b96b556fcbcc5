"""Behaviour that Vizier's own tests of clients do not cover."""

import contextlib
import math
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.longrunning import operations_pb2
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from vizier._src.service import study_pb2
from vizier._src.service import vizier_service_pb2 as pb
from vizier._src.service.vizier_service_pb2_grpc import VizierServiceStub

from paxtune.service.address import Service
from paxtune.service.registry import DatabaseStudies
from paxtune.service.server import Server
from paxtune.service.study_location import ServiceLocation
from paxtune.service.tokens import parse
from paxtune.storage.codec import StudySpec, TrialProto, encode_study, encode_trial
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.record import StudyRecord, TrialRecord
from paxtune.vizier_service.errors import VizierError
from paxtune.vizier_service.service import METHODS, VizierService
from tests.paxtune.vizier_service.conftest import (
    STUDY,
    complete,
    connected,
    create,
    fails,
    measurement,
    suggest,
)
from tests.properties import examples
from trainer.symbolic.errors import UserError

OWN = 'owners/paxtune/studies/own'


def make_own(database):
    """A study that paxtune made, with a trial."""
    store = VizierStore(database, 'own')
    store.create_from_spec(encode_study(StudyRecord('{}', '', '{}', {})))
    store.add_protos([encode_trial(TrialRecord({'x': 0.5}))])


def test_an_operation_is_finished_and_known_by_its_name(stub):
    create(stub)
    operation, trials = suggest(stub, 2)
    assert operation.name == 'owners/me/operations/suggestion/mine/worker/1'
    request = operations_pb2.GetOperationRequest(name=operation.name)
    assert stub.GetOperation(request) == operation
    assert [trial.id for trial in trials] == ['1', '2']
    with fails('NOT_FOUND', 'no operation'):
        stub.GetOperation(operations_pb2.GetOperationRequest(name=f'{operation.name}0'))


def test_a_client_gets_its_active_trials_then_requested_ones_then_new_ones(stub):
    create(stub)
    _, (first,) = suggest(stub)
    waiting = study_pb2.Trial()
    waiting.parameters.add(parameter_id='x').value.number_value = 0.125
    for _ in range(2):
        stub.CreateTrial(pb.CreateTrialRequest(parent=STUDY, trial=waiting))
    _, trials = suggest(stub, 4)
    assert [trial.id for trial in trials] == ['1', '2', '3', '4'] and trials[0] == first
    assert trials[1].parameters[0].value.number_value == 0.125
    assert {trial.client_id for trial in trials} == {'worker'}
    assert suggest(stub, client='another')[1][0].id == '5'
    assert [trial.id for trial in suggest(stub, 2)[1]] == ['1', '2']


@pytest.mark.parametrize('algorithm', ['GP_UCB_PE', 'CMA_ES', 'SHUFFLED_GRID_SEARCH'])
def test_suggestions_depend_on_the_study_alone(database, algorithm):
    found = []
    for _ in range(2):
        with connected(database) as stub:
            create(stub, algorithm)
            for _ in range(6):
                trial = suggest(stub)[1][0]
                complete(stub, trial, -abs(trial.parameters[0].value.number_value - 0.3))
            trials = stub.ListTrials(pb.ListTrialsRequest(parent=STUDY)).trials
            found.append([trial.parameters[0].value.number_value for trial in trials])
            stub.DeleteStudy(pb.DeleteStudyRequest(name=STUDY))
    assert found[0] == found[1]
    assert len(set(found[0])) == 6


def test_a_finite_space_is_exhausted_without_an_error(stub):
    spec = StudySpec(algorithm='GRID_SEARCH')
    spec.parameters.add(parameter_id='x').discrete_value_spec.values.extend([1.0, 2.0])
    study = study_pb2.Study(display_name='mine', study_spec=spec)
    stub.CreateStudy(pb.CreateStudyRequest(parent='owners/me', study=study))
    operation, trials = suggest(stub, 5)
    assert len(trials) == 2 and not operation.HasField('error')
    assert suggest(stub, client='another')[1] == []


@pytest.mark.parametrize(
    ('algorithm', 'message'),
    [
        ('BOCS', 'there is no BOCS here'),
        ('EXTERNAL_PYTHIA_SERVICE', 'runs no algorithm of a client'),
        ("DnaGenerator('os.system')", 'expected one of'),
    ],
)
def test_an_algorithm_that_is_not_here_is_an_error_of_the_operation(stub, algorithm, message):
    create(stub, algorithm)
    operation, trials = suggest(stub)
    assert message in operation.error.message and trials == []


def test_trials_that_do_not_fit_the_space_or_have_no_finite_score_mislead_no_algorithm(stub):
    create(stub, 'GAUSSIAN_PROCESS_BANDIT')
    alien = study_pb2.Trial(state='SUCCEEDED', final_measurement=measurement(9.0))
    alien.parameters.add(parameter_id='x').value.number_value = 7.0
    stub.CreateTrial(pb.CreateTrialRequest(parent=STUDY, trial=alien))
    for score in (math.nan, math.inf, *range(6)):
        complete(stub, suggest(stub)[1][0], score)
    trial = suggest(stub)[1][0]
    assert 0.0 <= trial.parameters[0].value.number_value <= 1.0
    best = stub.ListOptimalTrials(pb.ListOptimalTrialsRequest(parent=STUDY)).optimal_trials
    assert [each.id for each in best] == ['1']


def test_a_trial_below_the_median_should_stop_where_the_study_says_so(stub):
    create(stub, default_stopping_spec={})
    create(stub, name='other')
    for study in (STUDY, 'owners/me/studies/other'):
        *others, last = suggest(stub, 6, study=study)[1]
        for trial in others:
            request = pb.AddTrialMeasurementRequest(
                trial_name=trial.name, measurement=measurement(2.0, step=1)
            )
            stub.AddTrialMeasurement(request)
        check = pb.CheckTrialEarlyStoppingStateRequest(trial_name=last.name)
        assert not stub.CheckTrialEarlyStoppingState(check).should_stop
        worse = pb.AddTrialMeasurementRequest(
            trial_name=last.name, measurement=measurement(1.0, step=1)
        )
        stub.AddTrialMeasurement(worse)
        assert stub.CheckTrialEarlyStoppingState(check).should_stop is (study == STUDY)


def test_errors_have_the_status_codes_of_vizier(stub):
    create(stub)
    trial = complete(stub, suggest(stub)[1][0], 1.0)
    with fails('NOT_FOUND', 'no study'):
        stub.GetStudy(pb.GetStudyRequest(name='owners/me/studies/none'))
    with fails('NOT_FOUND', 'no owner'):
        stub.ListStudies(pb.ListStudiesRequest(parent='owners/nobody'))
    with fails('NOT_FOUND', 'no trial'):
        stub.GetTrial(pb.GetTrialRequest(name=f'{STUDY}/trials/9'))
    with fails('FAILED_PRECONDITION', 'SUCCEEDED'):
        complete(stub, trial, 2.0)
    with fails('INVALID_ARGUMENT', 'not the name of a study'):
        stub.DeleteStudy(pb.DeleteStudyRequest(name=trial.name))
    with fails('INVALID_ARGUMENT', 'display_name'):
        create(stub, name='a/b')
    with fails('INVALID_ARGUMENT', 'suggestion_count'):
        suggest(stub, 10**6)
    with fails('INVALID_ARGUMENT', 'no measurement'):
        stub.CompleteTrial(pb.CompleteTrialRequest(name=suggest(stub)[1][0].name))
    stub.SetStudyState(pb.SetStudyStateRequest(parent=STUDY, state='COMPLETED'))
    with fails('FAILED_PRECONDITION', 'is COMPLETED'):
        suggest(stub)


def test_metadata_is_written_whole_or_not_at_all(stub):
    create(stub)
    suggest(stub)
    request = pb.UpdateMetadataRequest(name=STUDY)
    request.delta.add().metadatum.key = 'of_study'
    request.delta.add(trial_id='1').metadatum.key = 'of_trial'
    request.delta.add(trial_id='7').metadatum.key = 'of_trial'
    assert 'no trial 7' in stub.UpdateMetadata(request).error_details
    assert not stub.GetStudy(pb.GetStudyRequest(name=STUDY)).study_spec.metadata
    listed = pb.ListTrialsRequest(parent=STUDY)
    assert not stub.ListTrials(listed).trials[0].metadata
    del request.delta[2]
    assert stub.UpdateMetadata(request).error_details == ''
    trial = stub.GetTrial(pb.GetTrialRequest(name=f'{STUDY}/trials/1'))
    assert [each.key for each in trial.metadata] == ['of_trial']
    assert stub.ListTrials(listed).trials[0] == trial


def test_clients_that_change_metadata_and_measure_do_not_wait_for_each_other(stub):
    create(stub)
    (trial,) = suggest(stub)[1]
    changes = pb.UpdateMetadataRequest(name=STUDY)
    for number in range(20):
        changes.delta.add(trial_id=trial.id).metadatum.key = str(number)
    added = pb.AddTrialMeasurementRequest(trial_name=trial.name, measurement=measurement(1.0))
    with ThreadPoolExecutor() as pool:
        calls = [(stub.UpdateMetadata, changes), (stub.AddTrialMeasurement, added)] * 50
        replies = [pool.submit(call, request, timeout=60.0) for call, request in calls]
        assert len([each.result() for each in replies]) == 100
    trial = stub.GetTrial(pb.GetTrialRequest(name=trial.name))
    assert (len(trial.metadata), len(trial.measurements)) == (20, 50)


def test_many_calls_for_suggestions_delay_no_other_call(database):
    service = VizierService(database)
    with contextlib.ExitStack() as stack:
        server = Server(DatabaseStudies(database), vizier_service=service)
        stack.enter_context(server)
        stubs = [
            VizierServiceStub(stack.enter_context(grpc.insecure_channel(address, options)))
            for address in [f'127.0.0.1:{server.port}'] * 24
            for options in [[('grpc.use_local_subchannel_pool', 1)]]
        ]
        create(stubs[0])
        (trial,) = suggest(stubs[0])[1]
        request = pb.SuggestTrialsRequest(parent=STUDY, client_id='another')
        with service._study(STUDY).suggesting:
            waiting = [stub.SuggestTrials.future(request) for stub in stubs[1:] for _ in range(2)]
            final = pb.CompleteTrialRequest(name=trial.name, final_measurement=measurement(1.0))
            done = stubs[0].CompleteTrial(final, timeout=60.0)
        assert done.state == TrialProto.State.SUCCEEDED
        assert all(call.result().done for call in waiting)


def test_a_server_that_stops_ends_calls_for_many_suggestions_early(database):
    with ThreadPoolExecutor() as pool:
        with connected(database) as stub:
            create(stub, 'GAUSSIAN_PROCESS_BANDIT')
            call = pool.submit(suggest, stub, 1000)
            store = VizierStore(database, 'mine', 'me')
            while not store.ids():
                time.sleep(0.01)
        assert isinstance(call.exception(), grpc.RpcError)
    count = len(store.ids())
    assert 0 < count < 1000
    with connected(database) as stub:
        assert len(suggest(stub, count)[1]) == count == len(store.ids())


def test_a_study_of_paxtune_can_be_read_and_is_not_changed(database, stub):
    make_own(database)
    assert [
        study.name for study in stub.ListStudies(
            pb.ListStudiesRequest(parent='owners/paxtune')
        ).studies
    ] == [OWN]  # fmt: skip
    (trial,) = stub.ListTrials(pb.ListTrialsRequest(parent=OWN)).trials
    assert trial.parameters[0].value.number_value == 0.5
    operation, trials = suggest(stub, study=OWN)
    assert 'is a study of paxtune' in operation.error.message and not trials
    for call in (
        lambda: stub.DeleteStudy(pb.DeleteStudyRequest(name=OWN)),
        lambda: stub.SetStudyState(pb.SetStudyStateRequest(parent=OWN, state='COMPLETED')),
        lambda: complete(stub, trial, 1.0),
        lambda: stub.UpdateMetadata(pb.UpdateMetadataRequest(name=OWN)),
    ):
        with fails('FAILED_PRECONDITION', 'is a study of paxtune'):
            call()
    # Coordinators write over the same connection.
    VizierStore(database, 'own').add_protos([encode_trial(TrialRecord({'x': 0.25}))])
    assert len(stub.ListTrials(pb.ListTrialsRequest(parent=OWN)).trials) == 2


def test_studies_of_clients_are_listed_and_refused_where_an_experiment_is_needed(database, stub):
    create(stub)
    make_own(database)
    assert database.studies() == ['me/mine', 'own']
    location = ServiceLocation(Service('127.0.0.1:1', 'me/mine'))
    with pytest.raises(UserError, match='me/mine: a Vizier client created the study'):
        location.store()
    with pytest.raises(UserError, match='a Vizier client created the study'):
        VizierStore(database, 'mine', 'me').study()


def test_a_client_cannot_pass_a_study_off_as_one_of_paxtune(database, stub):
    metadata = [{'ns': ':paxtune', 'key': 'format', 'value': '3'}]
    create(stub, metadata=metadata)
    assert not stub.GetStudy(pb.GetStudyRequest(name=STUDY)).study_spec.metadata
    request = pb.UpdateMetadataRequest(name=STUDY, delta=[{'metadatum': metadata[0]}])
    with fails('INVALID_ARGUMENT', 'own'):
        stub.UpdateMetadata(request)


def test_the_owner_of_paxtune_gets_no_study_of_a_client(stub):
    study = study_pb2.Study(display_name='mine')
    with fails('NOT_FOUND', 'no study owners/paxtune/studies/mine'):
        stub.CreateStudy(pb.CreateStudyRequest(parent='owners/paxtune', study=study))


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(sorted(METHODS)),
    name=st.sampled_from([STUDY, f'{STUDY}/trials/1', f'{STUDY}/trials/x', 'owners/me', OWN, ''])
    | st.text(max_size=20),
    extra=st.binary(max_size=20),
)
def test_no_request_is_an_internal_error(database, method, name, extra):
    service = VizierService(database)
    request = METHODS[method].request()
    for field in ('name', 'parent', 'trial_name', 'client_id'):
        if field in request.DESCRIPTOR.fields_by_name:
            setattr(request, field, name)
    for data in (request.SerializeToString(), request.SerializeToString() + extra):
        # Any other exception is the code INTERNAL.
        with contextlib.suppress(VizierError):
            assert isinstance(service.answer(method, data), bytes)


def test_clients_without_a_token_are_unauthenticated_where_there_are_tokens(database):
    text = 'the-token-of-an-admin\nthe-token-of-a-worker work me/\nthe-token-of-another admin m/'
    tokens = parse(text, '--token_file=tokens')
    with connected(database, tokens) as stub, fails('UNAUTHENTICATED', 'no token'):
        create(stub)
    with connected(database, tokens, 'the-token-of-an-admin') as stub:
        create(stub)
    with connected(database, tokens, 'the-token-of-a-worker') as stub:
        assert len(suggest(stub)[1]) == 1
        with fails('PERMISSION_DENIED', 'needs the role admin'):
            stub.DeleteStudy(pb.DeleteStudyRequest(name=STUDY))
    with connected(database, tokens, 'the-token-of-another') as stub:
        with fails('PERMISSION_DENIED', 'me/mine'):
            stub.DeleteStudy(pb.DeleteStudyRequest(name=STUDY))
        for owner in ('me', 'missing'):
            assert not stub.ListStudies(pb.ListStudiesRequest(parent=f'owners/{owner}')).studies
