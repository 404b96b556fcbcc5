"""Hashes of the users' code: they change with its meaning, and with nothing else."""

import functools
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from search_spaces import lm
from tests.factories.edited_cells import EDITS, cell, notebook
from trainer.symbolic.code_hashes import code_hashes, differing

SOURCE = '''
import functools
import math
from dataclasses import dataclass
from typing import Any

import flax.linen as nn

import code_helpers
from trainer.layers import LinenAdapter

RATE = 0.1
calls = 0


def act(x):
    """Activates."""
    return nn.relu(x) * RATE if math.pi else x in {'one', 'two', 'three'}


def slope(x):
    return code_helpers.steep(x)


@dataclass
class Shape:
    width: int = 8

    def area(self):
        return self.width**2


class Net(nn.Module):
    width: int = 8

    @nn.compact
    def __call__(self, x):
        return slope(act(nn.Dense(Shape(self.width).area())(x)))


class Base(LinenAdapter):
    @property
    def scale(self):
        return 1.0


class Mine(Base):
    dims: int = 8
    other: Any = None

    def make(self):
        return Net(int(self.dims * self.scale))


def made(power):
    def objective(x, by=1):
        global calls
        calls += 1
        return act(x) ** power

    return objective
'''
HELPERS = """
def steep(x):
    return 2 * x
"""


def loaded(directory: Path, name: str, source: str) -> Any:
    """Executes the source of a module, in place of an earlier version."""
    module = types.ModuleType(name)
    module.__file__ = str(directory / f'{name}.py')
    sys.modules[name] = module
    exec(compile(source, module.__file__, 'exec'), vars(module))
    return module


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ('code_helpers', 'code_mine'):
        monkeypatch.setitem(sys.modules, name, None)

    def load(old: str = '', new: str = '') -> Any:
        assert old in SOURCE + HELPERS
        loaded(tmp_path, 'code_helpers', HELPERS.replace(old, new))
        return loaded(tmp_path, 'code_mine', SOURCE.replace(old, new))

    return load


def test_all_code_that_a_class_names_has_a_hash(load: Any) -> None:
    found = code_hashes(load().Mine())
    mine = ('Base', 'Mine', 'Net', 'Shape', 'act', 'slope')
    assert [*found] == ['code_helpers.steep', *(f'code_mine.{name}' for name in mine)]
    assert code_hashes(load().Mine()) == found


@pytest.mark.parametrize(
    ('old', 'new', 'name'),
    [
        ('nn.relu', 'nn.tanh', 'code_mine.act'),
        ('RATE = 0.1', 'RATE = 0.2', 'code_mine.act'),
        ("'three'", "'four'", 'code_mine.act'),
        ('return 2 * x', 'return 3 * x', 'code_helpers.steep'),
        ('width**2', 'width**3', 'code_mine.Shape'),
        ('    width: int = 8\n\n    @nn', '    width: int = 9\n\n    @nn', 'code_mine.Net'),
        ('return 1.0', 'return 2.0', 'code_mine.Base'),
        ('* self.scale', '+ self.scale', 'code_mine.Mine'),
    ],
)
def test_a_change_is_found_where_it_is(load: Any, old: str, new: str, name: str) -> None:
    before = code_hashes(load().Mine())
    assert differing(before, code_hashes(load(old, new).Mine())) == [name]


@pytest.mark.parametrize(
    ('old', 'new'),
    [
        ('"""Activates."""', '"""Returns an activation."""  # As published.'),
        ('\n\n\ndef slope', '\n# A comment.\ndef slope'),
        ('return nn.relu(x) * RATE if', 'return (\n        nn.relu(x) * RATE\n    ) if'),
        ('calls = 0', 'calls = 7'),
        ('class Mine', 'def unused(): ...\n\n\nclass Mine'),
    ],
)
def test_comments_formatting_and_other_code_do_not_count(load: Any, old: str, new: str) -> None:
    before = code_hashes(load().Mine())
    assert differing(before, code_hashes(load(old, new).Mine())) == []


def test_functions_have_their_defaults_and_what_they_close_over(load: Any) -> None:
    module = load()
    before = code_hashes(module.made(2))
    assert [*before] == ['code_mine.act', 'code_mine.made.<locals>.objective']
    assert differing(before, code_hashes(module.made(2))) == []
    assert differing(before, code_hashes(module.made(3))) == [[*before][1]]
    assert differing(before, code_hashes(load('by=1', 'by=2').made(2))) == [[*before][1]]


def test_values_anywhere_in_a_tree_are_found(load: Any) -> None:
    module = load()
    bound = functools.partial(module.act, 1)
    for value in ([module.act], {'a': (module.act,)}, bound, module.Mine(other=module.act)):
        assert 'code_mine.act' in code_hashes(value)
    assert 'code_mine.Shape' in code_hashes(module.Shape(3))


def test_code_without_a_file_has_a_hash() -> None:
    # As a cell of a notebook.
    def objective(text: str) -> Any:
        space: dict[str, Any] = {'__name__': '__main__'}
        exec(compile(text, '<ipython-input-1>', 'exec'), space)
        return space['f']

    before = code_hashes(objective('def f(x):\n    return x'))
    assert len(before) == 1
    assert not differing(before, code_hashes(objective('def f(x):\n    return x  # The same.')))
    assert differing(before, code_hashes(objective('def f(x):\n    return -x')))


def test_lambdas_of_one_name_have_their_own_hashes() -> None:
    first, second, third = (lambda x: x), (lambda x: -x), (lambda x: 2 * x)
    both = code_hashes([first, second])
    assert len(both) == 2
    assert not differing(both, code_hashes(second))
    assert len(differing(both, code_hashes([first, third]))) == 1


def test_libraries_and_our_packages_have_none() -> None:
    assert code_hashes(lm.StdlibTunable(), max, sys, Path, {'x': 1.5}, None) == {}


def test_calls_of_calls_and_lists_in_themselves_have_any_depth() -> None:
    found: dict[str, Any] = {'__name__': '__main__'}
    lines = [f'def f{at}(x): return f{at + 1}(x)\n' for at in range(1000)]
    exec(''.join(lines) + 'L = []\nL.append(L)\ndef f1000(x): return L', found)
    assert len(code_hashes(found['f0'])) == 1001


GROWING = """
RESULTS, CACHE = [], {}

class Counted:
    seen = []

def made():
    own = []
    def objective(x, before=[]):
        for each in (RESULTS, Counted.seen, own, before):
            each.append(x)
        CACHE[1] = x
    return objective
"""


def test_results_that_a_run_adds_to_lists_are_no_change_of_code() -> None:
    found: dict[str, Any] = {'__name__': '__main__'}
    exec(GROWING, found)
    objective = found['made']()
    before = code_hashes(objective)
    for result in (1.0, object()):
        objective(result)
        assert code_hashes(objective) == before
    found['RESULTS'] = [1]
    assert differing(before, code_hashes(objective)) == ['__main__.made.<locals>.objective']


COUNTING = """
import types

calls, state = 0, types.SimpleNamespace(calls=0)

class Counted:
    calls = own = made = 0

    def __init__(self):
        self.seen = 0

    @classmethod
    def count(cls):
        cls.made += 1

    def __call__(self, x):
        self.seen += 1
        type(self).own += 1
        Counted.calls += 1
        self.count()

counted = Counted()

def made():
    total = other = 0
    def count():
        nonlocal other
        other += 1
    def objective(x):
        global calls
        nonlocal total
        calls += 1
        total += 1
        objective.calls += 1
        state.calls += 1
        counted(x)
        count()
        return total + other + calls
    objective.calls = 0
    return objective
"""


def test_counters_of_a_run_are_no_change_of_code() -> None:
    found: dict[str, Any] = {'__name__': '__main__'}
    exec(COUNTING, found)
    objective = found['made']()
    before = code_hashes(objective)
    assert [each.rpartition('.')[2] for each in before] == ['Counted', 'count', 'objective']
    objective(1)
    assert code_hashes(objective) == before
    again: dict[str, Any] = {'__name__': '__main__'}
    exec(COUNTING, again)
    tried = again['made']()
    tried(1)
    assert code_hashes(tried) == before


@pytest.mark.parametrize(
    ('before', 'now', 'expected'),
    [
        ({'f': 'a', 'g': 'b'}, {'f': 'b', 'g': 'a'}, ['f', 'g']),
        ({'f': 'a', 'g': 'b'}, {'f': 'a', 'g': 'a'}, ['g']),
        ({'f': 'a'}, {'g': 'a'}, []),
        ({'f': 'a'}, {'f': 'a', 'g': 'b'}, ['g']),
        ({'l': 'a', 'l#2': 'b'}, {'l': 'b', 'l#2': 'a'}, ['l', 'l#2']),
        ({'l': 'a', 'l#2': 'b'}, {'l': 'b'}, []),
        ({'l': 'b'}, {'l': 'a', 'l#2': 'b'}, ['l']),
    ],
)
def test_code_is_compared_by_name(
    before: dict[str, str], now: dict[str, str], expected: list[str]
) -> None:
    assert differing(before, now) == expected


def test_a_long_list_costs_little_and_is_not_kept() -> None:
    values = [0] * 3_000_000

    def objective() -> list[int]:
        return values

    before, start = sys.getrefcount(values), time.process_time()
    hashes = code_hashes(objective)
    assert time.process_time() - start < 0.1
    assert sys.getrefcount(values) == before
    values.append(1)
    assert code_hashes(objective) == hashes


@pytest.mark.parametrize('name', EDITS)
def test_an_edit_is_found_by_another_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'a_notebook', types.ModuleType('a_notebook'))
    hashes = []
    for edits in (), (), EDITS[name][2:]:
        found = notebook()
        for each in (*EDITS[name][:2], *edits):
            cell(each, found)
        hashes.append(code_hashes(found['made']))
    before, same, now = hashes
    assert differing(before, same) == []
    assert differing(before, now)
