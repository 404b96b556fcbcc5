"""The watch detects forbidden actions: a fuzz test without it would prove nothing."""

import ast
import json
import marshal
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from tests.fuzz import trees, watch
from trainer.symbolic.errors import UserError


def _imports() -> None:
    sys.modules.pop('this_is_no_module', None)
    __import__('fuzz_canary')


def _loops() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ('run', 'what'),
    [
        (lambda: eval('1 + 1'), 'exec'),
        (lambda: exec('x = 1'), 'exec'),
        (lambda: compile('1', 'a file', 'eval'), 'compile'),
        (_imports, 'import'),
        (lambda: os.system('true'), r'os\.system'),
        (lambda: subprocess.run(['true']), r'subprocess\.Popen'),
        (lambda: open(os.devnull, 'w').close(), 'open'),
        (lambda: Path(os.devnull).touch(), r'os\.utime'),
        (lambda: pickle.loads(pickle.dumps(watch.trap)), r'pickle\.find_class'),
        (lambda: marshal.loads(marshal.dumps(1)), r'marshal\.loads'),
        (watch.trap, 'the trap was called'),
        (watch.trap_functor(), 'the symbolic trap was called'),
        (watch.Trap, 'a Trap was made'),
    ],
)
def test_it_sees(
    run: Callable[[], Any], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'fuzz_canary.py').write_text('')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AssertionError, match=f'it ran: .*{what}'):
        watch.refused_or_taken(run)
    sys.modules.pop('fuzz_canary', None)


def test_it_sees_what_takes_too_long_or_too_much() -> None:
    watch.forget_peak()
    with pytest.raises(AssertionError):
        watch.refused_or_taken(lambda: (b'1' * (300 * 2**20))[:1])
    with pytest.raises(watch.TooSlow), watch.harmless(seconds=0.1):
        _loops()


@pytest.mark.parametrize('read', [lambda: ast.parse('x + 1'), lambda: json.loads('[1]'), list])
def test_it_lets_through_what_runs_nothing(read: Callable[[], Any]) -> None:
    assert watch.refused_or_taken(read) is not None


def _refuses(message: str) -> None:
    raise UserError(message)


@pytest.mark.parametrize('message', ['', '\n', 'x\n' * watch.MAX_LINES])
def test_a_message_that_is_none_for_people_does_not_pass(message: str) -> None:
    assert watch.refused_or_taken(lambda: _refuses('a reason')) is None
    with pytest.raises(AssertionError):
        watch.refused_or_taken(lambda: _refuses(message))
    with pytest.raises(KeyError):
        watch.refused_or_taken(lambda: {'x': 1}['y'])


@pytest.mark.parametrize('payload', trees.HOSTILE[:2])
def test_the_payloads_are_real(payload: Any) -> None:
    """PyGlove itself runs them."""
    text = json.dumps(payload)
    with pytest.raises(AssertionError, match=r'pickle\.find_class|marshal\.loads'):
        watch.refused_or_taken(lambda: pg.from_json_str(text, auto_import=False))
