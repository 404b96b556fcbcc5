"""The service survives any message, and rejected requests change nothing."""

import grpc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from paxtune.service import schema
from tests.factories.messages import requests
from tests.paxtune.service.conftest import content, spec, trial
from tests.properties import examples

EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,
}


@pytest.fixture
def populated(client):
    client.call(schema.CreateStudyRequest(spec=spec()))
    client.call(schema.AddRequest(trials=[trial(), trial()], suggest_lock='', worker=''))
    client.call(schema.ClaimRequest(worker='w', options=None))
    return client


@pytest.mark.parametrize('method', schema.METHODS)
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_message_makes_the_service_fail(method, data, populated, raw, database):
    request = data.draw(requests(method))
    before = content(database)
    code, details = raw(method, request)
    assert code in EXPECTED, f'{code}: {details}'
    if code is not grpc.StatusCode.OK:
        assert content(database) == before
    # Later calls succeed with what is stored now.
    populated.call(schema.ChangesRequest(generation='', since=0))
    if populated.call(schema.ClaimRequest(worker='other', options=None)).trial is not None:
        populated.call(
            schema.LoseRequest(
                worker='other', reason='x', counts=False, is_dead=True, max_attempts=3
            )
        )
