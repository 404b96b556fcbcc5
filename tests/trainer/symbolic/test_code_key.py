"""Cells of a notebook that are edited and run again, reloaded modules, replaced methods."""

import functools
import gc
import importlib
import sys
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.factories.edited_cells import EDITS, NET, cell, notebook
from trainer.layers import Dropout, Linear, Mlp, Stack
from trainer.symbolic.code_key import code_key


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'a_notebook', types.ModuleType('a_notebook'))


@pytest.mark.parametrize('name', EDITS)
def test_an_edit_is_another_key_and_the_same_code_is_not(name: str) -> None:
    found = notebook()
    before, first, edit = EDITS[name]
    cell(before, found)
    original = code_key(cell(first, found))
    assert code_key(found['made']) == original
    assert code_key(cell('\n\n' + first + '  # The same code.', found)) == original
    assert code_key(cell(edit, found)) != original
    again = notebook()
    cell(before, again)
    assert code_key(cell(first, again)) == original


def test_a_reloaded_module_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / 'a_users_helper.py'
    try:
        keys = []
        for body in ('x', 'x + x', '-x'):
            file.write_text(f'def helped(x): return {body}\n')
            importlib.invalidate_caches()
            module: Any = importlib.import_module('a_users_helper')
            importlib.reload(module)
            found = notebook() | {'helper': module}
            inner = (
                'class Net(Layer):\n    def forward(self, x):\n        from a_users_helper import '
            )
            uses = (
                NET.format('helper.helped(x)'),
                f'{inner}helped\n        return helped(x)\nmade = Net()',
            )
            keys += [code_key(cell(each, found)) for each in uses]
        assert len(set(keys)) == len(keys)
    finally:
        sys.modules.pop('a_users_helper', None)


def test_all_that_functions_name_of_one_module_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    uses = 'def f(x): return helper.f(x)\ndef g(x):\n    from .helper import g\n    return g(x)\n'
    package = tmp_path / 'a_users_package'
    package.mkdir()
    (package / '__init__.py').write_text('')
    (package / 'uses.py').write_text(f'from . import helper\n{uses}def h(x): return helper.h(x)')
    try:
        keys = []
        for at in range(4):
            edited = [('f', 'g', 'h')[each - 1] if each == at else '' for each in (1, 2, 3)]
            lines = [f'def {name}(x): return {"-" if name in edited else ""}x\n' for name in 'fgh']
            (package / 'helper.py').write_text(''.join(lines) + '# ' * at)
            importlib.invalidate_caches()
            helper = importlib.reload(importlib.import_module('a_users_package.helper'))
            user: Any = importlib.import_module('a_users_package.uses')
            assert user.helper is helper
            keys.append([code_key([user.f, user.h]), code_key(user.g)])
        original, *changed = keys
        assert [[a != b for a, b in zip(original, each, strict=True)] for each in changed] == [
            [True, False],
            [False, True],
            [True, False],
        ]
    finally:
        for name in [each for each in sys.modules if each.startswith('a_users_package')]:
            del sys.modules[name]


def test_calls_of_calls_have_any_depth() -> None:
    found = notebook()
    lines = [f'def f{at}(x): return f{at + 1}(x)\n' for at in range(1000)]
    cell(''.join(lines) + 'def f1000(x): return x', found)
    original = code_key(found['f0'])
    cell('def f1000(x): return -x', found)
    assert code_key(found['f0']) != original


def test_linked_objects_have_any_length() -> None:
    found = notebook()
    lines = 'class Node:\n    def __init__(self, rest): self.rest = rest\nhead = None\n'
    cell(lines + 'for _ in range(1000): head = Node(head)\ndef f(x): return head', found)
    keys = {code_key(found['f'])}
    cell('head = Node(head)', found)
    assert code_key(found['f']) not in keys


def test_unusual_objects_have_keys() -> None:
    class Raises:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __repr__(self) -> str:
            raise RuntimeError

    class Makes:
        def __getattr__(self, name: str) -> Any:
            return Makes()

        def __call__(self) -> None: ...

    first, second, third = Raises(), {Raises(): 1}, Makes()
    assert code_key(lambda: first) == code_key(lambda: first) != code_key(lambda: Raises)
    assert code_key(lambda: second)
    assert code_key(lambda: third)


def test_a_replaced_method_of_our_own_class_is_another_key() -> None:
    before, method = code_key(Linear(2)), Linear.forward
    try:
        Linear.forward = lambda self, x: 2 * method(self, x)  # type: ignore[method-assign]
        assert code_key(Linear(2)) != before
    finally:
        Linear.forward = method  # type: ignore[method-assign]
    assert code_key(Linear(2)) == before


def test_numbers_of_components_do_not_count_and_other_values_do() -> None:
    assert code_key(Dropout(0.1)) == code_key(Dropout(0.2))
    assert code_key(Mlp([8], 2)) != code_key(Mlp([9], 2))


def test_keys_keep_nothing_alive_and_are_never_used_again() -> None:
    def made() -> Callable[..., Any]:
        by = threading.Event()
        return lambda: by

    keys = set()
    for _ in range(3):
        function = made()
        seen = weakref.ref(function)
        keys.add(code_key(function))
        del function
        gc.collect()
        assert seen() is None
    assert len(keys) == 3


def test_callables_of_libraries_have_keys() -> None:
    given = (jax.nn.relu, jax.numpy.tanh, functools.partial(jax.nn.leaky_relu, negative_slope=0.1))
    assert len(set(map(code_key, given))) == 3
    assert list(map(code_key, given)) == list(map(code_key, given))


def test_layers_of_one_name_and_other_code_are_no_run() -> None:
    found = notebook()
    first, second = (cell(NET.format(body), found) for body in ('x', '2 * x'))
    names = [part.name for part in Stack([first, first.clone(), second], scan='always').storage()]
    assert names == ['layers_0x2', 'layers_2']
