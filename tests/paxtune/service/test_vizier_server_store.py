"""Studies in a Vizier server, here our own: what is there, what is lost, who may write."""

import base64
import contextlib
import logging
from typing import Any

import grpc
import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vizier._src.service import vizier_service_pb2 as pb
from vizier._src.service import vizier_service_pb2_grpc
from vizier._src.service.study_pb2 import Trial as Proto

import paxtune
from paxtune.engines.vizier_storage import VizierStorage
from paxtune.service.address import Service
from paxtune.service.connection import TransientError
from paxtune.service.registry import DatabaseStudies
from paxtune.service.server import Server
from paxtune.service.study_location import VizierLocation
from paxtune.service.vizier_server_store import VizierServerStore
from paxtune.storage import codec
from paxtune.storage.codec import TrialProto
from paxtune.storage.database import Database
from paxtune.studies.__main__ import main
from paxtune.study.record import TrialRecord
from paxtune.study.record_checks import DamagedRecordError
from paxtune.study.transitions import LeaseLostError
from paxtune.vizier_service.service import VizierService
from tests.factories.searches import told
from tests.properties import examples
from trainer.symbolic.errors import UserError

SPACE = {'x': pg.floatv(0.0, 1.0), 'kind': pg.oneof(['a', 'b'])}
NAME = 'owners/paxtune-search/studies/mine'


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.INFO)


@pytest.fixture
def service():
    with contextlib.closing(Database(None)) as database:
        served = VizierService(database)
        with Server(DatabaseStudies(database, 30.0), vizier_service=served) as server:
            yield Service(f'127.0.0.1:{server.port}', 'mine')


@pytest.fixture
def stub(service):
    with grpc.insecure_channel(service.endpoint) as channel:
        yield vizier_service_pb2_grpc.VizierServiceStub(channel)


def measured(values):
    for step in (1, 2, 3):
        if values.kind == 'a' and step > 1:
            raise ValueError('of the trial')
        yield {'objective': (values.x - 0.3) ** 2 / step}


def tune(directory, function=measured, **options):
    chosen: dict[str, Any] = {
        'objective': 'minimize',
        'algorithm': 'regularized_evolution',
        'seed': 3,
        'num_trials': 4,
    }
    return paxtune.tune(
        function, space=SPACE, job_log_dir=directory, callbacks=[], **(chosen | options)
    )


def trials(study):
    with study:
        return told(study.trials)


@pytest.fixture(scope='module')
def local_directory(tmp_path_factory):
    return tmp_path_factory.mktemp('local')


@pytest.fixture(scope='module')
def local(local_directory):
    found = trials(tune(local_directory))
    assert len(found) == 4 and len({state for _, state, *_ in found}) > 1
    return found


def read(service):
    with VizierLocation(service).open() as study:
        return told(study.trials)


def test_a_study_is_that_of_a_directory_and_continues(service, local, tmp_path, caplog):
    engine = VizierStorage(service)
    assert trials(tune(tmp_path / 'here', engine=engine, num_trials=2)) == local[:2]
    assert trials(tune(tmp_path / 'here', engine=engine)) == local == read(service)
    assert caplog.text.count('no leases and no compare-and-swap') == 2  # Once for each search.


@pytest.mark.slow
def test_clients_of_vizier_read_parameters_states_and_measurements(service, stub, tmp_path):
    with tune(tmp_path, engine=VizierStorage(service)) as study:
        spec = stub.GetStudy(pb.GetStudyRequest(name=NAME)).study_spec
        assert [each.parameter_id for each in spec.parameters] == ['x', 'kind']
        assert [each.metric_id for each in spec.metrics] == ['$reward']
        found = stub.ListTrials(pb.ListTrialsRequest(parent=NAME)).trials
        assert len(found) == len(study.trials) == 4
        for proto, trial in zip(found, study.trials, strict=True):
            assert proto.parameters[0].value.number_value == trial.decisions['x']
            assert len(proto.measurements) == len(trial.measurements)
            if trial.is_failed:
                assert proto.state == Proto.State.INFEASIBLE
                assert proto.infeasible_reason == trial.reason
            else:
                assert proto.state == Proto.State.SUCCEEDED
                assert proto.final_measurement.metrics[0].value == trial.reward


@pytest.mark.slow
def test_lost_replies_repeat_nothing(service, local, tmp_path, monkeypatch):
    original, lost = VizierServerStore.__init__, list[str]()

    def prepared(self, service):
        original(self, service)
        send = self._client._send

        def sent(method, message, timeout):
            reply = send(method, message, timeout)
            kind = type(message).__name__
            if lost.count(kind) < 3 and kind != 'GetStudyRequest':
                lost.append(kind)
                raise TransientError('the reply is lost')
            return reply

        self._client._send = sent

    monkeypatch.setattr(VizierServerStore, '__init__', prepared)
    assert trials(tune(tmp_path / 'here', engine=VizierStorage(service))) == local
    assert {'CreateTrialRequest', 'AddTrialMeasurementRequest'} <= {*lost}
    assert {'CompleteTrialRequest', 'SuggestTrialsRequest', 'UpdateMetadataRequest'} <= {*lost}


class _Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize('count', [1, 4, 9])
def test_a_kill_before_the_copy_is_made_up_for(service, stub, local, tmp_path, monkeypatch, count):
    calls = []

    def killed(self, *args):
        calls.append(args)
        if len(calls) >= count:
            raise _Killed
        return original(self, *args)

    original = VizierServerStore._copied
    with monkeypatch.context() as patched:
        patched.setattr(VizierServerStore, '_copied', killed)
        with pytest.raises(_Killed):
            tune(tmp_path / 'here', engine=VizierStorage(service))
    assert trials(tune(tmp_path / 'here', engine=VizierStorage(service))) == local
    found = stub.ListTrials(pb.ListTrialsRequest(parent=NAME)).trials
    lengths = [len(each) for *_, each in local]
    assert [len(each.measurements) for each in found] == lengths


@pytest.mark.slow
def test_of_two_searches_the_older_one_stops(service, local, tmp_path):
    def interrupted(values):
        yield from measured(values)
        if not newer:
            newer.append(trials(tune(tmp_path / 'newer', engine=VizierStorage(service))))

    newer = list[Any]()
    with pytest.raises(LeaseLostError, match=r'another search, .* has taken over'):
        tune(tmp_path / 'older', interrupted, engine=VizierStorage(service))
    assert newer == [local] and read(service) == local


def test_a_client_of_vizier_stops_a_trial(service, stub, tmp_path):
    def stopped(values):
        for report in measured(values):
            stub.StopTrial(pb.StopTrialRequest(name=f'{NAME}/trials/1'))
            yield report

    with tune(tmp_path, stopped, engine=VizierStorage(service), num_trials=1) as study:
        (trial,) = study.trials
        assert trial.stop_reason == 'stopped by request' and len(trial.measurements) == 1


@pytest.mark.slow
def test_a_trial_of_another_client_is_left_out(service, stub, tmp_path, caplog):
    trials(tune(tmp_path, engine=VizierStorage(service), num_trials=2))
    stub.CreateTrial(pb.CreateTrialRequest(parent=NAME, trial=Proto()))
    with tune(tmp_path, engine=VizierStorage(service)) as study:
        assert [each.id for each in study.trials] == [1, 2, 4, 5]
    assert 'trial 3 is left out: another client added trial 3. A client of Vizier' in caplog.text
    stub.DeleteTrial(pb.DeleteTrialRequest(name=f'{NAME}/trials/3'))
    assert len(trials(tune(tmp_path, engine=VizierStorage(service)))) == 4


@examples(50)
@given(st.text() | st.binary().map(lambda data: base64.b64encode(data).decode()))
def test_a_record_may_be_anything(text):
    proto = codec.client_trial(TrialRecord({'x': 0.5}, id=1))
    proto.id = '1'
    assert codec.decode_client_trial(proto).parameters == {'x': 0.5}
    proto.metadata[0].value = text
    with pytest.raises(DamagedRecordError, match='trial 1'):
        codec.decode_client_trial(proto)
    with pytest.raises(DamagedRecordError, match='another client added trial'):
        codec.decode_client_trial(TrialProto(id='1'))


@pytest.mark.slow
def test_other_commands_read_the_study_and_do_not_change_it(service, tmp_path, capsys):
    trials(tune(tmp_path, engine=VizierStorage(service)))
    where = [f'--storage=vizier://{service.endpoint}', '--study=mine']
    assert main(['list', where[0]]) == main(['trials', *where]) == 0
    out = capsys.readouterr().out
    assert f'{service.endpoint}/mine' in out and 'completed' in out
    main(['list', f'--vizier_endpoint={service.endpoint}'])
    assert f'{service.endpoint}/paxtune-search/mine' in capsys.readouterr().out
    for change in (['add', 'x=0.5'], ['retry', '1'], ['stop'], ['delete', '--yes'], ['ask']):
        with pytest.raises(UserError, match='only its search changes a study'):
            main([change[0], *where, *change[1:]])
    assert len(read(service)) == 4


@pytest.mark.usefixtures('local')
def test_several_trials_at_once_are_refused(service, tmp_path, local_directory):
    with pytest.raises(UserError, match='--fork_study'):
        tune(tmp_path / 'fork', engine=VizierStorage(service), fork_study=local_directory)


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--storage=redis://h:1'], r'redis://h:1: expected vizier://HOST:PORT'),
        (['--storage=vizier://h'], 'vizier://h: expected host:port'),
        (['--storage=vizier://h:1', '--study=a/b'], 'expected 1 to 200'),
        (['--storage=vizier://h:1', '--vizier_endpoint=h:2'], 'give one of them'),
    ],
)
def test_flags_that_name_no_server(flags, message):
    with pytest.raises(UserError, match=message):
        main(['trials', '--study=mine', *flags])
