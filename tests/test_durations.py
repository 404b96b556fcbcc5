"""Recorded durations divide the suite, and long tests state their reason."""

import ast
import itertools
from pathlib import Path

from tests import durations
from tests.servers.processes import ROOT


def test_shards_have_every_file_once() -> None:
    files = [f'{i}.py' for i in range(7)]
    seconds = {file: float(i) for i, file in enumerate(files[:6])}
    divided = durations.shards(files, seconds, 3)
    assert sorted(itertools.chain.from_iterable(divided)) == files
    work = [sum(seconds.get(file, 2.5) for file in part) for part in divided]
    assert max(work) < 1.5 * min(work)


def test_records_replace_those_of_the_same_files(tmp_path: Path) -> None:
    one, two = 'tests/test_durations.py', 'tests/conftest.py'
    before = {f'{one}::a': 70.0, f'{one}::b': 1.0, f'{two}::c': 2.0, 'gone.py::d': 1.0}
    durations.write('slow', before, tmp_path / 'durations.json')
    durations.write('slow', {f'{one}::b': 3.0}, tmp_path / 'durations.json')
    known = durations.read(tmp_path / 'durations.json')
    assert known == {'fast': {}, 'slow': {one: 3.0, two: 2.0}, 'long': {}}


def test_a_test_above_a_minute_states_its_reason() -> None:
    for test, seconds in durations.read()['long'].items():
        file, *names = test.partition('[')[0].split('::')
        tree = ast.parse((ROOT / file).read_text())
        found = [
            n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == names[-1]
        ]
        markers = [ast.unparse(each) for node in found for each in node.decorator_list]
        assert any('slow(reason=' in each for each in markers), f'{test}: {seconds} s'
