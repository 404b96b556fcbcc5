"""A service with a database in memory, and callers that send anything."""

import contextlib
import logging
import time
from collections.abc import Callable

import grpc
import pyglove as pg
import pytest

from paxtune.search_space.decisions import spec_to_json
from paxtune.service import schema, tokens
from paxtune.service.client import Client
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.registry import StudyRegistry
from paxtune.service.server import Server
from paxtune.service.tokens import Token
from paxtune.storage.codec import StudySpec, encode_study, encode_trial
from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore
from paxtune.studies.__main__ import main
from paxtune.study.record import StudyRecord, TrialRecord
from tests.factories.clocked_service import Service

TOKEN = 'a-token-of-the-tests'
SPACE = spec_to_json(pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0))))


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.INFO)


@pytest.fixture
def service(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(Service(tmp_path / 'studies.db')) as made:
        yield made


@pytest.fixture
def database():
    with contextlib.closing(Database(None)) as database:
        yield database


@pytest.fixture
def registry(database):
    # The clock stands still: nothing is changed but by a call.
    return StudyRegistry(
        lambda study: StudyCoordinator(VizierStore(database, study), clock=lambda: 0.0),
        exists=lambda study: VizierStore(database, study).study_spec() is not None,
    )


@pytest.fixture
def server(registry):
    with Server(registry, tokens=[Token(TOKEN)], max_bytes=100_000) as server:
        yield server


@pytest.fixture
def client(server):
    with client_of(server) as client:
        yield client


@pytest.fixture
def kept(client, database):
    """A database with a trial, which a test must not change."""
    client.call(schema.CreateStudyRequest(spec=spec()))
    client.call(schema.AddRequest(trials=[trial()], suggest_lock='', worker=''))
    before = content(database)
    yield
    assert content(database) == before


@pytest.fixture
def raw(server):
    """Sends bytes to a method as they are. Returns the code and the details."""
    with grpc.insecure_channel(f'127.0.0.1:{server.port}') as channel:

        def send(method, data, token=TOKEN):
            metadata = [] if token is None else [('authorization', f'Bearer {token}')]
            path = method if method.startswith('/') else schema.path(method)
            answer = channel.unary_unary(path).future(data, metadata=metadata, timeout=20)
            return answer.code(), answer.details()

        yield send


def client_of(server, study='mine', token=TOKEN, patience=5.0, **more):
    return Client(f'127.0.0.1:{server.port}', study, token, patience=patience, **more)


def spec(name='x'):
    parameter = StudySpec.ParameterSpec(parameter_id=name)
    parameter.double_value_spec.max_value = 1.0
    return encode_study(StudyRecord('{}', '', SPACE, {}), [parameter]).SerializeToString()


def trial(value=0.5):
    return encode_trial(TrialRecord({'x': value})).SerializeToString()


def content(database):
    """All that is in a database."""
    with database.reading() as connection:
        return [
            sorted(map(repr, connection.exec_driver_sql(f'SELECT * FROM {table}')))
            for table in ('owners', 'studies', 'trials')
        ]


class Studies:
    """A coordinator whose `delete` calls a function."""

    num_leases = 2

    def __init__(self, delete):
        self._delete = delete

    def delete(self, id, created):
        self._delete()
        return schema.EmptyReply()


def serving(delete, **more):
    return Server(StudyRegistry(lambda study: Studies(delete)), **more)


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def told(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Runs `studies` on a study of a service; returns what it prints."""
    monkeypatch.setenv(tokens.VARIABLE, TOKEN)

    def tell(name: str, *argv: object) -> str:
        where = [f'--vizier_endpoint=127.0.0.1:{server.port}', '--study=mine']
        assert main([name, *where, *map(str, argv)]) == 0
        return capsys.readouterr().out

    return tell
