"""Errors of the user's code: one message with the line to look at."""

import json
from pathlib import Path

import pytest

from trainer.symbolic.errors import UserError
from trainer.symbolic.user_code import described, user_line

HERE = Path(__file__).relative_to(Path.cwd())


def test_an_error_inside_libraries_names_the_line_that_called_them() -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads('{')
    code = test_an_error_inside_libraries_names_the_line_that_called_them.__code__
    assert user_line(raised.value) == f'{HERE}:{code.co_firstlineno + 2}'
    assert described(raised.value).startswith('JSONDecodeError: Expecting property name')


def test_a_syntax_error_names_its_line_once() -> None:
    with pytest.raises(SyntaxError) as raised:
        compile('x = 1\ny = (', 'mine.py', 'exec')
    assert described(raised.value) == "SyntaxError: '(' was never closed (mine.py:2)"


def test_an_error_of_ours_has_no_line_and_no_type() -> None:
    assert described(UserError('no data\nhere')) == 'no data'
    assert described(ValueError()) == 'ValueError'
