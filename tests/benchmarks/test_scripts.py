"""Scripts of `benchmarks/` import, with and without peers, and what they name exists."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.processes import ROOT

FILES = sorted((ROOT / 'benchmarks').rglob('*.py'))
SCRIPTS = [path for path in FILES if path.parent.name == 'benchmarks']
OWN = ('paxtune', 'trainer', 'search_spaces', 'benchmarks', 'tools', 'tests')

PEERS = {
    f'benchmarks.search.{name}'
    for name in ('optuna_samplers', 'smac_search', 'hebo_search', 'ax_search')
}
"""The modules that import a peer at their top."""

# Allows what benchmarks/requirements/*.txt install beside a peer, and nothing that they lack.
_WITHOUT_OURS = """
import importlib, sys

allowed = {*sys.stdlib_module_names, 'benchmarks', 'paxtune', 'numpy', 'scipy', 'etils'}


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] not in allowed:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Missing())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def module_name(path: Path) -> str:
    return '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')


def named(tree: ast.AST) -> Iterator[str]:
    """The dotted names of our own objects that code imports or quotes, also code in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith(OWN))
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            if node.module.startswith(OWN):
                yield from (f'{node.module}.{alias.name}' for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.search(r'^(from|import) \w', node.value, re.MULTILINE):
                yield from named(ast.parse(node.value))
            elif re.fullmatch(rf'({"|".join(OWN)})(\.\w+)+', node.value):
                yield node.value


@pytest.mark.parametrize('path', FILES, ids=module_name)
def test_benchmark_names_existing_objects(path: Path) -> None:
    for name in {*named(ast.parse(path.read_text()))} - PEERS:
        assert not name.startswith('tests.'), name
        assert pkgutil.resolve_name(name), name


@pytest.mark.parametrize('script', SCRIPTS, ids=module_name)
def test_benchmark_answers_help(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr('sys.argv', [script.name, '--help'])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module_name(script)).main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f'usage: {script.name} ')


def test_every_module_of_benchmarks_imports() -> None:
    for path in FILES:
        if module_name(path) not in PEERS:
            importlib.import_module(module_name(path))


def test_workers_of_peers_import_nothing_that_peers_lack() -> None:
    workers = ['benchmarks.load.workers', 'benchmarks.search.worker', 'benchmarks.search.latency']
    modules = [*workers, 'benchmarks.search.tables']
    done = subprocess.run(
        [sys.executable, '-c', _WITHOUT_OURS, *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
