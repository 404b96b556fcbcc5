"""Messages: encoded messages are decoded, others are rejected."""

import inspect
import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.service import schema
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.schema import (
    METHODS,
    MalformedError,
    RequestRejectedError,
    WorkerOptions,
)
from tests.factories.messages import messages

UPDATE = {
    'id': 3,
    'expected': 'a',
    'trial': b'x',
    'worker': 'w',
    'attempt': 1,
    'request_id': 'r',
}


pack = msgspec.msgpack.encode


@given(st.data(), st.sampled_from(sorted(METHODS)))
def test_messages_round_trip(data, method):
    kinds = METHODS[method]
    request = data.draw(messages(kinds.request, study='a'))
    assert schema.decode(kinds.request, schema.encode(request)) == request
    reply = data.draw(messages(kinds.reply))
    assert schema.decode(kinds.reply, schema.encode(reply)) == reply


@pytest.mark.parametrize('method', METHODS)
def test_a_coordinator_has_every_method_with_the_fields_of_its_request(method):
    function = getattr(StudyCoordinator, method)
    fields = set(METHODS[method].request.__struct_fields__) - {'study'}
    assert set(inspect.signature(function).parameters) - {'self'} == fields
    assert typing.get_type_hints(function)['return'] is METHODS[method].reply


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'id': '3'}, 'Expected `int`, got `str` - at `$.id`'),
        ({'id': True}, 'Expected `int`, got `bool` - at `$.id`'),
        ({'id': 0}, 'Expected `int` >= 1 - at `$.id`'),
        ({'id': 2**31}, 'Expected `int` <= 2147483647 - at `$.id`'),
        ({'attempt': -1}, 'Expected `int` >= 0 - at `$.attempt`'),
        ({'attempt': 2**63}, 'Expected `int` <= 9223372036854775807 - at `$.attempt`'),
        ({'trial': 'x'}, 'Expected `bytes`, got `str` - at `$.trial`'),
        ({'trial': None}, 'Expected `bytes`, got `None` - at `$.trial`'),
        ({'worker': b'w'}, 'Expected `str`, got `bytes` - at `$.worker`'),
        ({'worker': 'a\nb'}, 'Expected `str` matching regex'),
        ({'worker': 'a\n'}, 'Expected `str` matching regex'),
        ({'worker': 'a\u202eb'}, 'Expected `str` matching regex'),
        ({'worker': 'w' * 201}, 'Expected `str` of length <= 200 - at `$.worker`'),
        ({'worker': {'w': 1}}, 'Expected `str`, got `object` - at `$.worker`'),
        ({'request_id': ''}, 'Expected `str` of length >= 1 - at `$.request_id`'),
        ({'study': '../other'}, 'Expected `str` matching regex'),
        ({'study': '..'}, 'Expected `str` matching regex'),
        ({'study': ''}, 'Expected `str` matching regex'),
        ({'study': 'a\n'}, 'Expected `str` matching regex'),
        ({'more\n': 1}, r'Object contains unknown field `more\n`'),
        ({'x' * 1000: 1}, 'unknown field `xxx'),
        ({3: 1}, 'Expected `str`, got `int`'),
        ({'worker': msgspec.msgpack.Ext(5, b'')}, 'Expected `str`, got `ext` - at `$.worker`'),
    ],
)
def test_invalid_fields_are_rejected(change, message):
    data = pack({'study': 'a', **UPDATE, **change})
    with pytest.raises(MalformedError) as caught:
        schema.decode(schema.UpdateRequest, data)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300 and str(caught.value).isprintable()


@pytest.mark.parametrize('field', ['study', 'request_id', *UPDATE])
def test_a_missing_field_is_named(field):
    fields = {name: value for name, value in {'study': 'a', **UPDATE}.items() if name != field}
    with pytest.raises(MalformedError, match=field):
        schema.decode(schema.UpdateRequest, pack(fields))


@pytest.mark.parametrize(
    'data',
    [
        b'',
        b'\xc1',
        b'\x80\x80',
        b'\xdf\xff\xff\xff\xff',
        b'\xdd\x00\x00\xff\xff',
        pack(3),
        pack([1, 2]),
        b'\x81\xa2\xff\xff\xa1a',
        b'\x91' * 10_000 + b'\xc0',
        b'\x81' * 10_000 + b'\xc0',
        # Few bytes that stand for many objects.
        pack([[{}] * 1000] * 1000),
        # A repeated field.
        b'\x83\xa5study\xa1a\xa5known\xa1a\xa5known\xa1b',
        # A second message.
        b'\x82\xa5study\xa1a\xa5known\xa1a\xc0',
    ],
)
def test_invalid_bytes_are_rejected(data):
    with pytest.raises(MalformedError):
        schema.decode(schema.StudyRequest, data)


@pytest.mark.parametrize('workers', [pack(['w'] * 50_001), b'\xdd\xff\xff\xff\xff'])
def test_the_length_of_lists_is_limited(workers):
    data = b'\x82\xa5study\xa1a\xa7workers' + workers
    with pytest.raises(MalformedError, match='Expected `array` of length <= 50000'):
        schema.decode(schema.RevokedRequest, data)


def test_numbers_are_checked():
    call = schema.ClaimRequest(study='a', worker='w', options=WorkerOptions(3, 1))
    options = schema.decode(schema.ClaimRequest, schema.encode(call)).options
    assert options is not None and type(options.trial_timeout) is float
    for timeout, attempts in [(float('nan'), 1), (-1.0, 1), (1.0, 0), (1.0, float('inf'))]:
        sent = {'trial_timeout': timeout, 'max_attempts': attempts}
        with pytest.raises(MalformedError, match='options'):
            schema.decode(schema.ClaimRequest, pack({'study': 'a', 'worker': 'w', 'options': sent}))


def test_text_that_cannot_be_encoded_is_rejected():
    with pytest.raises(MalformedError, match='cannot be encoded'):
        schema.encode(schema.UpdateStudyRequest(expected='\ud800', spec=b''))


def test_a_rejection_has_a_code_and_a_message():
    error = RequestRejectedError('fenced', 'no worker holds trial 3')
    assert (error.code, str(error)) == ('fenced', 'no worker holds trial 3')
