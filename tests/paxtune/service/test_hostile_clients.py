"""Hostile clients: the service answers others, and nothing outside their study changes."""

import contextlib
import dataclasses
import threading
import time

import grpc
import msgspec
import pytest

from paxtune.config.budget import Budget
from paxtune.service import schema
from paxtune.service.remote_store import RemoteStore
from paxtune.service.schema import METHODS, Role
from paxtune.service.server import Server
from paxtune.service.tokens import Token
from paxtune.storage.codec import StudySpec, TrialProto, encode_study
from paxtune.study.record import StudyRecord
from paxtune.study.redefinition import redefined
from tests.factories import function_studies as functions
from tests.factories.call_flood import codes
from tests.paxtune.service.conftest import SPACE, TOKEN, client_of, spec, trial
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import to_json_text

StatusCode = grpc.StatusCode
READER, WORKER, ALICE = 'a-token-that-reads', 'a-token-that-works', 'a-token-of-alice-'
NESTED = '[' * 100_000
SECONDS = 10.0  # Alone, the service answers within one; other tests may run beside it.


@pytest.fixture
def server(registry):
    rights = [
        Token(TOKEN),
        Token(READER, Role.READ),
        Token(WORKER, Role.WORK),
        Token(ALICE, prefix='alice-'),
    ]
    with Server(registry, tokens=rights, max_bytes=300_000) as server:
        yield server


@contextlib.contextmanager
def answers(server, clock=time.monotonic):
    """Asks as another client all the time, and says how long the service takes."""
    ended, taken = threading.Event(), list[tuple[float, float]]()

    def ask():
        with client_of(server) as client:
            while not taken or not ended.wait(0.02):
                began = clock(), time.monotonic()
                assert len(client.call(schema.ChangesRequest(generation='', since=0)).trials) == 1
                taken.append((clock() - began[0], time.monotonic() - began[1]))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    bounded, seconds = map(max, zip(*taken, strict=True))
    print(f'the service answered {len(taken)} calls, each within {seconds:.2f} s')
    assert bounded < SECONDS


@pytest.mark.slow
def test_silent_streams_do_not_delay_others(server, kept):
    with answers(server):
        calls = [(schema.path('delete'), None)] * 1000
        assert set(codes(server.port, TOKEN, calls, connections=300)) == {'UNAVAILABLE'}


@pytest.mark.slow
def test_invented_names_do_not_delay_others(server, kept):
    calls = []
    for number in range(500):
        study = f'invented-{number}'
        calls += [
            (schema.path('study'), schema.encode(schema.StudyRequest(study=study, known=''))),
            (
                schema.path('changes'),
                schema.encode(schema.ChangesRequest(study=study, generation='', since=0)),
            ),
        ]
    # These keep it busy, so its time is counted, not that of other processes.
    with answers(server, time.process_time):
        assert codes(server.port, TOKEN, calls) == ['OK', 'NOT_FOUND'] * 500


def test_ids_of_nothing_change_nothing(server, client, kept):
    options = schema.WorkerOptions(trial_timeout=0.0, max_attempts=1)
    with answers(server):
        for id_ in (1, 7, 2**31 - 1):
            client.call(schema.DeleteRequest(id=id_, created='1999-01-01'))
            client.call(
                schema.HeartbeatRequest(
                    worker='other', attempt=1, id=id_, progress=1, options=options
                )
            )
            with pytest.raises(schema.RequestRejectedError):
                client.call(
                    schema.UpdateRequest(
                        worker='other', attempt=1, id=id_, expected='x', trial=trial(0.9)
                    )
                )
        client.call(
            schema.LoseRequest(
                worker='other', reason='x', counts=True, is_dead=True, max_attempts=1
            )
        )
        client.call(schema.ReleaseSuggestLockRequest(suggest_lock='invented'))


@pytest.mark.parametrize('method', METHODS)
def test_every_method_has_its_role_and_its_study(method, server, raw, kept):
    values = {'known': '', 'spec': spec(), 'expected': '', 'generation': '', 'since': 0, 'id': 1}
    values |= {'trials': [], 'suggest_lock': '', 'worker': '', 'trial': trial(), 'attempt': 1}
    values |= {'options': None, 'progress': 1, 'reason': '', 'counts': False, 'is_dead': False}
    values |= {'max_attempts': 1, 'workers': [], 'request_id': 'x', 'study': 'mine'}
    kind, _, role = METHODS[method]
    names = {each.name for each in msgspec.structs.fields(kind)}
    data = schema.encode(kind(**{name: values[name] for name in names & values.keys()}))
    for token, its_role in ((READER, Role.READ), (WORKER, Role.WORK)):
        if its_role < role:
            code, details = raw(method, data, token)
            assert code is StatusCode.PERMISSION_DENIED
            assert f'{method} needs the role {role.name.lower()}, and the token has' in details
    if role is Role.READ:
        assert raw(method, data, READER)[0] is StatusCode.OK
    if method != 'studies':
        code, details = raw(method, data, ALICE)
        assert code is StatusCode.PERMISSION_DENIED
        assert details == 'the token is for studies named alice-…, not for mine'


def test_a_token_shows_only_its_studies(server, kept):
    with client_of(server, 'alice-1', ALICE) as alice, client_of(server) as client:
        assert alice.call(schema.StudiesRequest()).names == []
        assert client.call(schema.StudiesRequest()).names == ['mine']
        with client_of(server, token=ALICE) as other:
            began = time.monotonic()
            with pytest.raises(UserError, match='for studies named alice-…, not for mine'):
                other.call(schema.DeleteStudyRequest())
            assert time.monotonic() - began < SECONDS  # It is not repeated.


def test_a_worker_changes_requests_and_no_budget(server, client):
    record = StudyRecord('{}', to_json_text(functions.search(budget=Budget(1))), SPACE, {})
    more = to_json_text(functions.search(budget=Budget(2)))
    larger = redefined(record, dataclasses.replace(record, search=more))
    client.call(schema.CreateStudyRequest(spec=encode_study(record, []).SerializeToString()))
    store = RemoteStore(client)
    with client_of(server, token=WORKER) as worker:
        RemoteStore(worker).update_study(lambda old: dataclasses.replace(old, is_ended=True))
        with pytest.raises(
            UserError, match=r'redefine_study needs the role admin, and .* has work'
        ):
            RemoteStore(worker).update_study(lambda old: larger)
        version = worker.call(schema.StudyRequest(known='')).version
        changed = encode_study(larger, []).SerializeToString()
        with pytest.raises(schema.RequestRejectedError, match='only its budgets'):
            worker.call(schema.UpdateStudyRequest(expected=version, spec=changed))
    assert store.study() == dataclasses.replace(record, is_ended=True)
    store.update_study(lambda old: larger)
    assert store.study() == larger


@pytest.mark.parametrize(
    'message',
    [
        b'\x91' * 200_000,
        b'\x82\xa5study' + b'\x91' * 200_000,
        msgspec.msgpack.encode({'study': 'mine', 'spec': b'', 'more': [[]]}),
        schema.encode(schema.CreateStudyRequest(study='mine', spec=b'\x0a' * 200_000)),
        b'x' * 300_001,
    ],
)
def test_nested_and_oversized_messages(message, server, raw, kept):
    with answers(server):
        expected = {StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED}
        assert raw('create_study', message)[0] in expected


def test_nested_records(server, client, kept):
    damaged = StudySpec.FromString(spec()), TrialProto.FromString(trial())
    for proto in damaged:
        for note in proto.metadata:
            note.value = NESTED
    study, one = (each.SerializeToString() for each in damaged)
    value = encode_study(StudyRecord(NESTED, '', SPACE, {}), []).SerializeToString()
    version = client.call(schema.StudyRequest(known='')).version
    with answers(server):
        for request in (
            schema.CreateStudyRequest(spec=study),
            schema.UpdateStudyRequest(expected=version, spec=study),
            schema.RedefineStudyRequest(expected=version, spec=value),
            schema.AddRequest(trials=[one], suggest_lock='', worker=''),
            schema.UpdateRequest(id=1, expected='', trial=one, worker='', attempt=0),
        ):
            with pytest.raises(schema.RequestRejectedError) as refusal:
                client.call(request)
            assert refusal.value.code == 'invalid'
