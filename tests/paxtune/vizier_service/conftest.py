"""A server with Vizier's API over a database in memory, and callers of it."""

import contextlib
import logging
from typing import Any

import grpc
import pytest
from vizier._src.service import study_pb2, vizier_service_pb2_grpc
from vizier._src.service import vizier_service_pb2 as pb

from paxtune.service.registry import DatabaseStudies
from paxtune.service.server import Server
from paxtune.storage.codec import StudySpec
from paxtune.storage.database import Database
from paxtune.vizier_service.service import VizierService
from tests.factories.vizier_searches import number

STUDY = 'owners/me/studies/mine'


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.INFO)


@pytest.fixture
def database():
    with contextlib.closing(Database(None)) as database:
        yield database


@contextlib.contextmanager
def connected(database, tokens=(), token=None):
    """A stub of a client, which sends a token if it has one."""
    studies = DatabaseStudies(database, 30.0)
    with (
        Server(studies, tokens=tokens, vizier_service=VizierService(database)) as server,
        grpc.insecure_channel(f'127.0.0.1:{server.port}') as channel,
    ):
        if token is not None:
            channel = grpc.intercept_channel(channel, _Authorized(token))
        yield vizier_service_pb2_grpc.VizierServiceStub(channel)


@pytest.fixture
def stub(database):
    with connected(database) as stub:
        yield stub


class _Authorized(grpc.UnaryUnaryClientInterceptor):
    def __init__(self, token):
        self._token = token

    def intercept_unary_unary(self, continuation, details, request):
        metadata = [('authorization', f'Bearer {self._token}')]
        return continuation(details._replace(metadata=metadata), request)


def create(stub, algorithm='RANDOM_SEARCH', name='mine', **more):
    """Creates a study that maximizes `score` over the number `x`."""
    spec = StudySpec(algorithm=algorithm, parameters=[number('x', 0.0, 1.0)], **more)
    spec.metrics.add(metric_id='score', goal='MAXIMIZE')
    study = study_pb2.Study(display_name=name, study_spec=spec)
    return stub.CreateStudy(pb.CreateStudyRequest(parent='owners/me', study=study))


def suggest(stub, count=1, client='worker', study=STUDY):
    """The finished operation, and its trials."""
    request = pb.SuggestTrialsRequest(parent=study, suggestion_count=count, client_id=client)
    operation = stub.SuggestTrials(request)
    assert operation.done
    trials = pb.SuggestTrialsResponse.FromString(operation.response.value).trials
    return operation, list(trials)


def measurement(score, step=0):
    made = study_pb2.Measurement(step_count=step)
    made.metrics.add(metric_id='score', value=score)
    return made


def complete(stub, trial, score):
    request = pb.CompleteTrialRequest(name=trial.name, final_measurement=measurement(score))
    return stub.CompleteTrial(request)


@contextlib.contextmanager
def fails(code, message):
    """Expects a call to fail with a status."""
    with pytest.raises(grpc.RpcError, match=message) as raised:
        yield
    error: Any = raised.value
    assert error.code() is getattr(grpc.StatusCode, code)
