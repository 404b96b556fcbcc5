"""`python -m tools.new`: a new part of each kind passes its tests and all checks at once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.processes import ROOT, environment
from tools.new import KINDS

NAMES = {kind: f'Scratch{kind.capitalize()}' for kind in KINDS}

_ADD_ALL = """
import sys
from tools.new import add, write_defaults
for kind, name in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    print(*add(kind, name), sep='\\n')
write_defaults()
"""


def run(root: Path, *arguments: str) -> str:
    """Runs Python in a copy of the repository, and returns its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=environment() | {'PYTHONPATH': str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope='module')
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository."""
    root = tmp_path_factory.mktemp('copy') / 'paxtune'
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns('.*', '__pycache__', 'build', 'runs'))
    return root


@pytest.fixture(scope='module')
def added(copy: Path) -> list[str]:
    """The files of a part of each kind in the copy."""
    pairs = [word for pair in NAMES.items() for word in pair]
    return sorted({*run(copy, '-c', _ADD_ALL, *pairs).split()})


@pytest.mark.slow(reason='mypy has no cache of the copy')
def test_new_parts_pass_all_checks(copy: Path, added: list[str]) -> None:
    python = [path for path in added if path.endswith('.py')]
    run(copy, '-m', 'ruff', 'check', *python)
    run(copy, '-m', 'ruff', 'format', '--check', *python)
    run(copy, 'tools/prose.py', '--check', *added)
    run(copy, '-m', 'mypy', *(path for path in python if 'scratch' in path))


@pytest.mark.slow
def test_new_parts_pass_their_tests_and_the_contract(copy: Path, added: list[str]) -> None:
    own = [path for path in added if '/test_scratch_' in path]
    assert len(own) == len(NAMES)
    pytest_in = ('-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-n', '0')
    run(copy, *pytest_in, '-m', 'slow or not slow', *own)
    guide = 'tests/test_guide.py::test_guide_names_every'
    named = ['_reward_scheduler_and_aggregator', '_algorithm_flag_function_and_field_of_a_search']
    files = ['tests/conformance', 'tests/search_spaces/test_golden.py']
    words = ' or '.join(['scratch', 'every_component', 'every_layer', 'defaults'])
    run(copy, *pytest_in, *files, '-k', words)
    run(copy, *pytest_in, *(guide + each for each in named))


@pytest.mark.slow
def test_new_part_prints_its_files_and_its_tests(copy: Path) -> None:
    printed = run(copy, '-m', 'tools.new', 'schedule', 'SteepDecay')
    assert '\n  trainer/learner/steep_decay.py\n' in printed
    assert 'python -m pytest tests/trainer/learner/test_steep_decay.py\n' in printed
    assert 'SteepDecay.' not in (copy / 'tests/search_spaces/golden/defaults.txt').read_text()


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('median', 'median: expected the name of a class, such as PatientStopping'),
        ('Median', 'paxtune/schedulers/median.py exists: choose another name'),
        ('Promote', 'paxtune/schedulers/__init__.py has the name Promote: choose another one'),
    ],
)
def test_new_part_with_a_name_that_is_taken_is_refused(name: str, message: str) -> None:
    done = subprocess.run(
        [sys.executable, '-m', 'tools.new', 'scheduler', name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, f'error: {message}\n')
