"""The server and its client, over real sockets: calls, and what comes and goes meanwhile."""

import concurrent.futures
import threading
import time

import grpc
import pytest

from paxtune.service import schema
from paxtune.service.client import Client
from paxtune.service.connection import ServiceUnavailableError
from paxtune.service.server import Server
from paxtune.service.tokens import Token
from paxtune.storage.database import DatabaseUnavailableError
from tests.paxtune.service.conftest import (
    TOKEN,
    client_of,
    serving,
    spec,
    trial,
    until,
)
from trainer.symbolic.errors import UserError

NO_STUDY = schema.StudyReply(lease_seconds=30.0, spec=None, version='', created=None)


@pytest.mark.contract
def test_trials_of_a_study(client):
    assert client.call(schema.StudyRequest(known='')) == NO_STUDY
    assert client.call(schema.CreateStudyRequest(spec=spec())).done
    added = client.call(schema.AddRequest(trials=[trial()], suggest_lock='', worker='')).trials
    assert client.call(schema.ChangesRequest(generation='', since=0)).trials == added


def test_studies_have_nothing_in_common(server, client, kept):
    with client_of(server, 'other') as other:
        for request in (schema.ChangesRequest(generation='', since=0), schema.DeleteRequest(id=1)):
            with pytest.raises(schema.RequestRejectedError) as refusal:
                other.call(request)
            assert refusal.value.code == 'missing'


@pytest.mark.contract
def test_many_threads_use_one_client(client):
    client.call(schema.CreateStudyRequest(spec=spec()))
    add = schema.AddRequest(trials=[trial()], suggest_lock='', worker='')
    threads = [threading.Thread(target=client.call, args=[add]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(client.call(schema.ChangesRequest(generation='', since=0)).trials) == 8


def test_a_call_waits_for_a_service_that_starts_again(server, registry, client, caplog):
    client.call(schema.CreateStudyRequest(spec=spec()))
    server.stop()
    done = []
    add = schema.AddRequest(trials=[trial()], suggest_lock='', worker='')
    thread = threading.Thread(target=lambda: done.append(client.call(add)))
    thread.start()
    until(lambda: 'does not answer' in caplog.text)
    with Server(registry, port=server.port, tokens=[Token(TOKEN)]):
        thread.join(10)
        assert len(done[0].trials) == 1
        assert len(client.call(schema.ChangesRequest(generation='', since=0)).trials) == 1


def test_a_call_is_sent_again_as_the_same_request():
    """Also where the first try was done, and only its answer was lost."""
    asked = []

    class StudyCoordinator:
        def add(self, request_id, **fields):
            asked.append(request_id)
            if len(asked) == 1:
                raise DatabaseUnavailableError
            return schema.TrialsReply(trials=[])

    with Server(lambda study: StudyCoordinator()) as server, client_of(server) as client:
        client.call(schema.AddRequest(trials=[], suggest_lock='', worker=''))
        client.call(schema.AddRequest(trials=[], suggest_lock='', worker=''))
    first, again, other = asked
    assert first == again != other


def test_a_service_that_stays_unavailable():
    with serving(int) as server:
        pass
    with client_of(server, patience=0.3) as client:
        with pytest.raises(ServiceUnavailableError, match=r'0\.3 s: UNAVAILABLE'):
            client.call(schema.DeleteRequest(id=1))
        with pytest.raises(UserError, match=f'--vizier_endpoint=127.0.0.1:{server.port}: '):
            client.connect(0.1)


def test_a_service_that_does_not_answer():
    release = threading.Event()
    with serving(release.wait) as server:
        late = pytest.raises(ServiceUnavailableError, match='DEADLINE_EXCEEDED')
        with client_of(server, timeout=0.1, patience=0.3) as client, late:
            client.call(schema.DeleteRequest(id=1))
        release.set()


def test_a_client_that_is_closed_does_not_wait():
    with serving(int) as server:
        pass
    client = client_of(server, patience=60)
    closing = threading.Timer(0.2, client.close)
    closing.start()
    with pytest.raises(ServiceUnavailableError, match='is closed'):
        client.call(schema.DeleteRequest(id=1))
    with pytest.raises(ServiceUnavailableError, match='is closed'):
        client.call(schema.DeleteRequest(id=1))
    closing.join()


def test_stopping_finishes_what_runs(caplog):
    running, release, done = threading.Event(), threading.Event(), []

    def slow():
        first = not running.is_set()
        running.set()
        if first:
            release.wait(10)

    server = serving(slow)
    server.start()
    with client_of(server, patience=0.0) as client:
        thread = threading.Thread(
            target=lambda: done.append(client.call(schema.DeleteRequest(id=1)))
        )
        thread.start()
        assert running.wait(10)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        with client_of(server, patience=0.5) as late, pytest.raises(ServiceUnavailableError):
            for _ in range(100):  # The other thread may not have begun to stop yet.
                late.call(schema.DeleteRequest(id=1))
                time.sleep(0.05)
        assert not done
        release.set()
        stopping.join(10)
        thread.join(10)
    assert done == [schema.EmptyReply()]


def test_an_endpoint_that_is_no_service_of_paxtune():
    other = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    port = other.add_insecure_port('127.0.0.1:0')
    other.start()
    with Client(f'127.0.0.1:{port}', 'mine') as client:
        for ask in (client.connect, lambda: client.call(schema.DeleteRequest(id=1))):
            with pytest.raises(UserError, match='no paxtune service'):
                ask()
    other.stop(None).wait()


@pytest.mark.parametrize('endpoint', ['tuner', 'tuner:', 'unix:/tmp/x', ':1', 'a:99999', 'a b:1'])
def test_invalid_endpoints(endpoint):
    with pytest.raises(UserError, match=f'--vizier_endpoint={endpoint}: expected host:port'):
        Client(endpoint, 'mine')
