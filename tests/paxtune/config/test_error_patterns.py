import json
import sys

import jax
import pytest

from paxtune.config.error_patterns import ErrorPattern


class Outer:
    class InnerError(ValueError):
        pass


@pytest.mark.parametrize(
    ('type_name', 'error', 'matches'),
    [
        ('ValueError', ValueError(), True),
        ('ValueError', Outer.InnerError(), True),
        ('Exception', KeyError(), True),
        ('Exception', KeyboardInterrupt(), False),
        ('BaseException', KeyboardInterrupt(), True),
        ('builtins.ValueError', ValueError(), True),
        ('KeyError', ValueError(), False),
        ('Error', ValueError(), False),
        ('InnerError', Outer.InnerError(), True),
        ('Outer.InnerError', Outer.InnerError(), True),
        (f'{__name__}.Outer.InnerError', Outer.InnerError(), True),
        ('other.InnerError', Outer.InnerError(), False),
        ('jax.errors.JaxRuntimeError', jax.errors.JaxRuntimeError('INTERNAL'), True),
        # Defined in json.decoder, offered in json.
        ('json.JSONDecodeError', json.JSONDecodeError('m', 'd', 0), True),
        ('json.decoder.JSONDecodeError', json.JSONDecodeError('m', 'd', 0), True),
        ('json.ValueError', ValueError(), False),
    ],
)
def test_an_error_matches_its_class_and_their_bases(type_name, error, matches):
    assert ErrorPattern(type_name).matches(error) == matches


@pytest.mark.pax('`errors_to_skip` by type')
@pytest.mark.parametrize(
    ('message', 'matches'), [(None, True), ('out of', True), ('^memory', False), ('OUT', False)]
)
def test_a_message_is_searched(message, matches):
    error = RuntimeError('first line\nran out of memory')
    assert ErrorPattern('RuntimeError', message).matches(error) == matches
    assert not ErrorPattern('ValueError', message).matches(error)


def test_a_name_imports_nothing():
    assert 'this' not in sys.modules
    assert not ErrorPattern('this.SomeError').matches(ValueError())
    assert 'this' not in sys.modules


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'type': ''}, 'type must be the name'),
        ({'type': 'a..b'}, 'type must be the name'),
        ({'type': 'ValueError('}, 'type must be the name'),
        ({'type': 'ValueError', 'message': '('}, 'message must be a regular expression'),
    ],
)
def test_a_pattern_is_checked(fields, message):
    with pytest.raises(ValueError, match=message):
        ErrorPattern(**fields)
