"""Files of the user, in the current directory, that hide our packages; the wheel's packages."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import paxtune

ROOT = Path(__file__).parents[1]
TINY = '--exp=tunable_lm.Tiny'


def command(directory: Path, module: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a directory, with the packages elsewhere on the path."""
    environment = os.environ | {'PYTHONPATH': str(ROOT)}
    return subprocess.run(
        [sys.executable, '-m', module, *flags],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ('file', 'module', 'flags'),
    [
        ('trainer.py', 'paxtune.studies', ['list']),
        ('trainer/__init__.py', 'paxtune.studies', ['list']),
        ('search_spaces.py', 'paxtune.search', [TINY]),
        ('search_spaces/__init__.py', 'trainer.inspect', ['--exp=lm.C4Small']),
        ('paxtune.py', 'trainer.inspect', ['--exp=lm.C4Small']),
    ],
)
def test_a_file_that_hides_a_package_is_named_in_one_message(
    tmp_path: Path, file: str, module: str, flags: list[str]
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text('raise SystemExit("the file of the user ran")')
    done = command(tmp_path, module, *flags)
    package = file.removesuffix('.py').partition('/')[0]
    hidden = f'error: {tmp_path / file} hides the package `{package}` of paxtune: rename it\n'
    assert (done.stderr, done.stdout, done.returncode) == (hidden, '', 2)


@pytest.mark.slow
def test_folders_of_these_names_that_are_no_packages_hide_nothing(tmp_path: Path) -> None:
    for name in ('examples', 'trainer', 'search_spaces', 'paxtune'):
        (tmp_path / name).mkdir()
    source = (ROOT / 'search_spaces/tunable_lm.py').read_text()
    (tmp_path / 'examples/mine.py').write_text(source)
    for exp in (TINY, '--exp=examples.mine.Tiny'):
        done = command(tmp_path, 'paxtune.space', exp, '--num_costed=0')
        assert done.returncode == 0, done.stderr


def test_a_script_that_hides_a_package_gets_the_same_message(tmp_path: Path) -> None:
    (tmp_path / 'trainer.py').write_text('import paxtune')
    done = subprocess.run(
        [sys.executable, 'trainer.py'],
        cwd=tmp_path,
        env=os.environ | {'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert 'ImportError' in done.stderr
    assert f'{tmp_path / "trainer.py"} hides the package `trainer`' in done.stderr


def test_the_wheel_has_what_the_readme_imports_and_runs() -> None:
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    packed = project['tool']['hatch']['build']['targets']['wheel']['packages']
    readme = (ROOT / 'README.md').read_text()
    used = set(re.findall(r'(?:--exp=|-m |from )(\w+)[. ]', readme))
    ours = {name for name in used if (ROOT / name).is_dir()}
    assert {'paxtune', 'trainer'} <= ours <= set(packed)
    assert Path(paxtune.__file__).parents[1] == ROOT
