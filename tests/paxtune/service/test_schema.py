"""Messages: what is written is read, and nothing else is."""

import inspect

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.service import schema
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.schema import METHODS, MalformedError, RequestRejectedError
from tests.paxtune.service.messages import fields_of

UPDATE = {
    'id': 3,
    'expected': 'a',
    'trial': b'x',
    'worker': 'w',
    'attempt': 1,
    'request': 'r',
}


@given(st.data(), st.sampled_from(sorted(METHODS)))
def test_what_is_written_is_read(data, method):
    request = data.draw(fields_of(METHODS[method].request))
    assert schema.decode_request(method, schema.encode_request(method, 'a', request)) == (
        'a',
        request,
    )
    reply = data.draw(fields_of(METHODS[method].reply))
    assert schema.decode_reply(method, schema.encode_reply(method, reply)) == reply


@pytest.mark.parametrize('method', METHODS)
def test_a_hub_has_every_method_with_the_fields_of_the_wire(method):
    signature = inspect.signature(getattr(StudyCoordinator, method))
    assert set(signature.parameters) - {'self'} == set(METHODS[method].request)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'id': '3'}, 'id: expected int, not str'),
        ({'id': True}, 'id: expected int, not bool'),
        ({'id': 0}, 'id: expected the number of a trial'),
        ({'id': 2**31}, 'id: expected the number of a trial'),
        ({'attempt': 2**63}, 'attempt: expected a number of 64 bits'),
        ({'trial': 'x'}, 'trial: expected bytes, not str'),
        ({'trial': None}, 'trial: expected bytes, not NoneType'),
        ({'worker': b'w'}, 'worker: expected str, not bytes'),
        ({'worker': 'a\nb'}, 'worker: expected at most 200 printable characters'),
        ({'worker': 'w' * 201}, 'worker: expected at most 200 printable characters'),
        ({'worker': {'w': 1}}, 'worker: expected str, not dict'),
        ({'request': ''}, 'request: expected a name that no other call has'),
        ({'study': '../other'}, 'study: expected 1 to 200'),
        ({'study': '..'}, 'study: expected 1 to 200'),
        ({'study': ''}, 'study: expected 1 to 200'),
        ({'study': 'a\n'}, 'study: expected 1 to 200'),
        ({'more': 1}, "there is no field 'more'"),
        ({3: 1}, 'int is not allowed for map key'),
        ({'worker': msgpack.ExtType(5, b'')}, "types of one's own are not taken"),
        ({'worker': msgpack.Timestamp(0)}, 'worker: expected str, not Timestamp'),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    data = msgpack.packb({'study': 'a', **UPDATE, **change})
    with pytest.raises(MalformedError) as caught:
        schema.decode_request('update', data)
    assert message in str(caught.value)


def test_a_missing_field_is_named():
    with pytest.raises(MalformedError, match='known missing'):
        schema.decode_request('study', msgpack.packb({'study': 'a'}))


@pytest.mark.parametrize(
    'data',
    [
        b'',
        b'\xc1',
        b'\x80\x80',
        b'\xdf\xff\xff\xff\xff',
        b'\xdd\x00\x00\xff\xff',
        msgpack.packb(3),
        msgpack.packb([1, 2]),
        b'\x81\xa2\xff\xff\xa1a',
        b'\x91' * 10_000 + b'\xc0',
        # Small on the wire, large in memory.
        msgpack.packb([[{}] * 1000] * 1000),
        # A field that stands there twice.
        b'\x83\xa5study\xa1a\xa5known\xa1a\xa5known\xa1b',
    ],
)
def test_what_is_no_such_map_is_refused(data):
    with pytest.raises(MalformedError):
        schema.decode_request('study', data)


def test_lists_and_messages_have_an_end(monkeypatch):
    monkeypatch.setattr(schema, 'MAX_ITEMS', 3)
    with pytest.raises(MalformedError, match='at most 3'):
        schema.encode_request('revoked', 'a', {'workers': ['w'] * 4})
    with pytest.raises(MalformedError, match='exceeds'):
        schema.decode_request('revoked', msgpack.packb({'study': 'a', 'workers': ['w'] * 4}))
    monkeypatch.setattr(schema, 'MAX_BYTES', 10)
    with pytest.raises(MalformedError, match='at most 10'):
        schema.encode_request('revoked', 'a', {'workers': []})


def test_numbers():
    call = {'worker': 'w', 'terms': {'trial_timeout': 3}}
    _, read = schema.decode_request('claim', schema.encode_request('claim', 'a', call))
    assert type(read['terms']['trial_timeout']) is float
    with pytest.raises(MalformedError, match=r'terms.trial_timeout: expected a number, not NaN'):
        schema.encode_request(
            'claim', 'a', {'worker': 'w', 'terms': {'trial_timeout': float('nan')}}
        )


def test_text_that_cannot_be_encoded_is_refused():
    with pytest.raises(MalformedError, match='notes'):
        schema.encode_request(
            'write_notes', 'a', {'expected': '', 'notes': {'a': '\ud800'}, 'request': 'r'}
        )


def test_a_refusal_says_why():
    refusal = RequestRejectedError('fenced', 'trial 3 is held by nobody')
    assert (refusal.code, str(refusal)) == ('fenced', 'trial 3 is held by nobody')
