"""The repository as a whole: modules, commands, and which way imports go."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paxtune
from tests.documents import commands_of, pages_of

ROOT = Path(__file__).parents[1]
PACKAGES = ('trainer', 'paxtune', 'search_spaces')
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob('*.py'))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def imported_packages(path: Path) -> set[str]:
    """Every top-level package that a file imports from, also inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition('.')[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and node.level == 0, f'{path}: relative import'
            found.add(node.module.partition('.')[0])
    return found


def is_command(path: Path) -> bool:
    return "if __name__ == '__main__'" in path.read_text()


COMMANDS = [module_name(path) for path in SOURCES if is_command(path)]


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize('name', [module_name(path) for path in SOURCES])
def test_module_imports(name: str) -> None:
    importlib.import_module(name)


def test_set_up_for_contributors_exists() -> None:
    (page,) = pages_of(__file__)
    assert commands_of(page.read_text()) == [
        ['make', 'test'],
        ['.', '.venv/bin/activate'],
        ['pre-commit', 'install'],
        ['python', '-m', 'tools.new', 'scheduler', 'PatientStopping'],
    ]
    assert re.search(r'^test:', (ROOT / 'Makefile').read_text(), re.MULTILINE)
    assert 'venv=${VENV:-.venv}' in (ROOT / 'tools' / 'with_environment.sh').read_text()
    assert 'pre-commit>=' in (ROOT / 'pyproject.toml').read_text()
    assert (ROOT / '.pre-commit-config.yaml').exists()


def test_packages_are_packages() -> None:
    for package in PACKAGES:
        assert (ROOT / package / 'py.typed').exists()
    for path in SOURCES:
        assert (path.parent / '__init__.py').exists(), f'{path.parent} has no __init__.py'


@pytest.mark.parametrize(
    ('module', 'kept_out'),
    [
        ('paxtune', ['tensorflow', 'jax']),
        ('search_spaces.lm', ['tensorflow']),
        ('search_spaces.nas', ['tensorflow']),
        ('trainer', ['tensorflow']),
    ],
)
def test_import_leaves_out(module: str, kept_out: list[str]) -> None:
    loaded = python('-c', f'import sys, {module}; print(*sys.modules, sep="\\n")')
    assert loaded.returncode == 0, loaded.stderr
    assert not set(kept_out) & set(loaded.stdout.split())


@pytest.mark.parametrize('command', COMMANDS)
def test_command_answers_help(command: str) -> None:
    answer = python('-m', command, '--help')
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith('usage: ')


def test_there_are_commands() -> None:
    assert {'trainer.main', 'paxtune.search', 'paxtune.train'} <= set(COMMANDS)


@pytest.mark.parametrize(
    ('package', 'above'),
    [('trainer', {'paxtune', 'search_spaces'}), ('paxtune', {'search_spaces'})],
)
def test_imports_go_one_way(package: str, above: set[str]) -> None:
    for path in (ROOT / package).rglob('*.py'):
        assert not imported_packages(path) & above, path


@pytest.mark.pax('google-vizier[jax]')
@pytest.mark.slow
def test_dependencies_of_vizier_designers_are_installed() -> None:
    names = 'gp_ucb_pe, gp_bandit, random'
    loaded = python('-c', f'from vizier._src.algorithms.designers import {names}')
    assert loaded.returncode == 0, loaded.stderr


def test_at_most_27_sentinels() -> None:
    marker = 'pytest.mark.' + 'sentinel'
    texts = [path.read_text() for path in (ROOT / 'tests').rglob('*.py')]
    assert sum(text.count(marker) for text in texts) <= 27


def test_the_newest_version_of_the_changelog_is_that_of_the_package() -> None:
    versions = re.findall(r'^## \[(\d.*?)\]', (ROOT / 'CHANGELOG.md').read_text(), re.MULTILINE)
    assert versions[0] == paxtune.__version__


def test_all_public_names_can_be_imported_at_once() -> None:
    code = 'from paxtune import *; print(tune.__name__, Search.__name__)'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout == 'tune Search\n'
