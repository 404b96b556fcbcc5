"""Invalid and unauthenticated calls are rejected and logged, and change nothing."""

import contextlib
import socket
import time

import grpc
import pytest

from paxtune.service import schema
from paxtune.service.client import Client
from paxtune.service.connection import ServiceFailedError
from tests.paxtune.service.conftest import TOKEN, client_of, serving, until
from trainer.symbolic.errors import UserError

StatusCode = grpc.StatusCode
DELETE = schema.encode(schema.DeleteRequest(study='mine', id=1))


@pytest.mark.parametrize('token', [None, '', 'a-token-of-the-test', TOKEN + 'x'])
def test_calls_without_the_token_are_rejected(token, raw, kept, caplog):
    for data in (DELETE, b'\xc1'):
        code, details = raw('delete', data, token=token)
        assert code is StatusCode.UNAUTHENTICATED
        assert details == ('no token' if token is None else 'a wrong token')
    assert raw('/paxtune.v1.Studies/none', b'', token=token)[0] is StatusCode.UNAUTHENTICATED
    assert 'UNAUTHENTICATED' in caplog.text and '127.0.0.1:' in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize('token', [None, 'another-token-than-that'])
def test_the_message_names_the_flag_of_the_token(token, server, kept):
    with client_of(server, token=token) as client:
        client.connect()
        with pytest.raises(UserError, match=r'--token_file .*PAXTUNE_TOKEN'):
            client.call(schema.DeleteRequest(id=1))


@pytest.mark.parametrize(
    'data', [b'', b'\xc1' * 100, schema.encode(schema.StudyRequest(study='mine', known=''))]
)
def test_malformed_messages(data, raw, kept, caplog):
    assert raw('delete', data)[0] is StatusCode.INVALID_ARGUMENT
    assert "'delete' of ipv4:127.0.0.1" in caplog.text


def test_malformed_trials(client, kept):
    with pytest.raises(schema.RequestRejectedError) as refusal:
        client.call(schema.AddRequest(trials=[b'\xff'], suggest_lock='', worker=''))
    assert refusal.value.code == 'invalid'


@pytest.mark.parametrize('study', ['../other', 'a/b', '', 'a\x00'])
def test_invalid_study_names(study, raw, kept):
    with pytest.raises(schema.MalformedError, match='study: expected'):
        Client('127.0.0.1:1', study)
    data = DELETE.replace(b'\xa4mine', bytes([0xA0 + len(study)]) + study.encode())
    assert raw('delete', data)[0] is StatusCode.INVALID_ARGUMENT


def test_a_message_over_the_size_limit(client, raw, kept, caplog):
    assert raw('create_study', b'x' * 100_001)[0] is StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(schema.RequestRejectedError, match='larger than max') as refusal:
        client.call(schema.CreateStudyRequest(spec=b'x' * 100_001))
    assert refusal.value.code == 'invalid'
    until(lambda: "'create_study' of ipv4:127.0.0.1" in caplog.text)


@pytest.mark.parametrize('path', ['/paxtune.v1.Studies/__init__', '/other.Service/delete'])
def test_unknown_methods(path, raw, kept, caplog):
    assert raw(path, DELETE)[0] is StatusCode.UNIMPLEMENTED
    assert path in caplog.text


@pytest.mark.parametrize('messages', [[], [b'']])
def test_a_call_without_a_message_is_rejected(messages, server, kept):
    with grpc.insecure_channel(f'127.0.0.1:{server.port}') as channel:
        send = channel.stream_unary(schema.path('delete')).future
        answer = send(iter(messages), metadata=[('authorization', f'Bearer {TOKEN}')])
        assert answer.code() is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    'data',
    [
        b'GET / HTTP/1.1\r\nHost: a\r\n\r\n',
        bytes(range(256)) * 100,
        b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\xff' * 1000,
        b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
    ],
)
def test_bytes_that_are_no_grpc_call(data, server, client, kept):
    address = ('127.0.0.1', server.port)
    with socket.create_connection(address, 20) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(10_000):
            pass
    # Others are served.
    assert len(client.call(schema.ChangesRequest(generation='', since=0)).trials) == 1


@pytest.mark.slow
def test_the_log_does_not_grow_with_what_is_sent(raw, kept, caplog):
    for _ in range(60):
        raw('delete', DELETE, token=None)
    lines = [each for each in caplog.messages if 'UNAUTHENTICATED' in each]
    assert 20 <= len(lines) <= 40
    time.sleep(1.1)
    raw('delete', DELETE, token=None)
    assert 'like this were suppressed' in caplog.messages[-1]


def test_internal_errors_are_only_logged(caplog):
    def fail():
        raise ZeroDivisionError('a secret')

    failed = pytest.raises(ServiceFailedError, match='ZeroDivisionError')
    with serving(fail) as server, client_of(server) as client, failed as caught:
        client.call(schema.DeleteRequest(id=1))
    assert 'secret' not in str(caught.value)
    assert 'secret' in caplog.text and 'Traceback' in caplog.text


def test_a_port_that_is_taken(server):
    with pytest.raises(UserError, match=f'--port={server.port}: .*in use'):
        serving(int, port=server.port).start()
