"""Health checks and metrics."""

import contextlib
import socket
import threading
import urllib.error
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paxtune.service import monitoring, schema
from paxtune.service.connection import ServiceUnavailableError
from paxtune.service.registry import StudyRegistry
from paxtune.service.server import Server
from paxtune.service.tokens import Token
from paxtune.storage.database import DatabaseUnavailableError
from tests.paxtune.service.conftest import TOKEN, Studies, client_of, serving, until


def health(server, service=schema.SERVICE):
    with grpc.insecure_channel(f'127.0.0.1:{server.port}') as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)
        return 'SERVING' if answer.status == health_pb2.HealthCheckResponse.SERVING else 'not'


def page(port, path='metrics', token=None):
    request = urllib.request.Request(f'http://127.0.0.1:{port}/{path}')
    if token is not None:
        request.add_header('Authorization', f'Bearer {token}')
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


def test_health_needs_no_token(server):
    assert health(server) == health(server, '') == 'SERVING'


def test_health_follows_the_database():
    away = threading.Event()

    def check():
        if away.is_set():
            raise DatabaseUnavailableError('gone')

    with serving(check, is_ready=check) as server:
        assert health(server) == 'SERVING'
        away.set()
        away_too = pytest.raises(ServiceUnavailableError, match='database is unavailable')
        with client_of(server, patience=0.0) as client, away_too:
            client.call(schema.DeleteRequest(id=1))
        assert health(server) == 'not'
        away.clear()
        until(lambda: health(server) == 'SERVING')


def test_metrics_count_calls():
    def fail():
        raise schema.RequestRejectedError('fenced', 'no')

    registry = StudyRegistry(lambda study: Studies(fail if study == 'mine' else int))
    metrics = monitoring.Metrics(registry.opened)
    with Server(registry, metrics=metrics) as server:
        for study in ('mine', 'other', 'other'):
            with (
                client_of(server, study) as client,
                contextlib.suppress(schema.RequestRejectedError),
            ):
                client.call(schema.DeleteRequest(id=1))
    with monitoring.serve(metrics, '127.0.0.1', 0) as port:
        text = page(port)
    assert 'paxtune_requests_total{code="FAILED_PRECONDITION",method="delete"} 1.0' in text
    assert 'paxtune_requests_total{code="OK",method="delete"} 2.0' in text
    assert 'paxtune_request_seconds_count{method="delete"} 3.0' in text
    assert 'paxtune_leases{study="mine"} 2.0' in text


def test_metrics_need_the_token_too():
    with monitoring.serve(monitoring.Metrics(), '127.0.0.1', 0, [Token(TOKEN)]) as port:
        for token in (None, 'another-token-than-that'):
            with pytest.raises(urllib.error.HTTPError, match='401') as refusal:
                page(port, token=token)
            refusal.value.close()
        assert 'paxtune_leases' in page(port, token=TOKEN)


def test_bytes_that_are_no_http_do_not_end_the_metrics(capfd):
    with monitoring.serve(monitoring.Metrics(), '127.0.0.1', 0) as port:
        with socket.create_connection(('127.0.0.1', port), 20) as connection:
            connection.sendall(b'\xff\x00\r\n\r\n')
            connection.recv(100)
        with pytest.raises(urllib.error.HTTPError, match='404') as refusal:
            page(port, 'other')
        refusal.value.close()
    assert capfd.readouterr().err == ''
