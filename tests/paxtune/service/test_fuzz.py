"""Whatever is sent, the service never fails, and what it refuses has changed nothing."""

import grpc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from paxtune.service import schema
from tests.paxtune.service.conftest import content, spec, trial
from tests.paxtune.service.messages import requests
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
    client.call('create_study', spec=spec())
    client.call('add', trials=[trial(), trial()], suggest_lock='', worker='')
    client.call('claim', worker='w', terms={})
    return client


@pytest.mark.parametrize('method', schema.METHODS)
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nothing_that_is_sent_makes_the_service_fail(method, data, populated, raw, database):
    request = data.draw(requests(method))
    before = content(database)
    code, details = raw(method, request)
    assert code in EXPECTED, f'{code}: {details}'
    if code is not grpc.StatusCode.OK:
        assert content(database) == before
    # Those who come after are served, and what is stored now is no trap for them.
    populated.call('changes', generation='', since=0)
    if populated.call('claim', worker='other', terms={})['trial'] is not None:
        loss = {'reason': 'x', 'counts': False, 'is_dead': True, 'max_attempts': 3}
        populated.call('lose', worker='other', **loss)
