"""Files of the user, in the current directory, that hide our packages; the wheel's packages."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import paxtune
from paxtune import clashes

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


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Makes a directory like site-packages, in which paxtune is installed."""
    for name in ('trainer', 'search_spaces'):
        (tmp_path / name).mkdir()
        shutil.copy(ROOT / name / '__init__.py', tmp_path / name)
    (tmp_path / 'paxtune-0.3.0.dist-info').mkdir()
    return tmp_path


def test_our_packages_alone_do_not_clash(installed: Path) -> None:
    assert not list(clashes.found(installed, [str(installed)]))


def test_an_installed_package_of_the_same_name_is_named(installed: Path) -> None:
    (installed / 'coqui_tts_trainer-0.3.1.dist-info').mkdir()
    (message,) = clashes.found(installed, [str(installed)])
    assert message.startswith(
        f'coqui-tts-trainer 0.3.1 is installed in {installed}, and has a pack'
    )
    assert message.endswith('pip install --force-reinstall --no-deps paxtune')


@pytest.mark.parametrize('name', ['trainer', 'search_spaces'])
def test_a_package_that_another_one_overwrote_is_named(installed: Path, name: str) -> None:
    file = installed / name / '__init__.py'
    file.write_text('import torch\n')
    (message,) = clashes.found(installed, [str(installed)])
    assert message.startswith(f'{file} is not that of paxtune: use an environment of its own')


def test_a_package_that_another_one_took_away_is_named(installed: Path) -> None:
    file = installed / 'trainer' / '__init__.py'
    file.unlink()
    (message,) = clashes.found(installed, [str(installed)])
    assert message.startswith(f'{file} of paxtune is missing: pip install')


def test_a_package_of_another_site_is_no_file_to_rename(installed: Path, tmp_path: Path) -> None:
    site = tmp_path / 'site-packages'
    (site / 'trainer').mkdir(parents=True)
    (site / 'trainer' / '__init__.py').touch()
    (message,) = clashes.found(installed, [str(site), str(installed)])
    assert 'hides the package `trainer` of paxtune: use an environment' in message


def test_the_wheel_has_what_the_readme_imports_and_runs() -> None:
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    packed = project['tool']['hatch']['build']['targets']['wheel']['packages']
    readme = (ROOT / 'README.md').read_text()
    used = set(re.findall(r'(?:--exp=|-m |from )(\w+)[. ]', readme))
    ours = {name for name in used if (ROOT / name).is_dir()}
    assert {'paxtune', 'trainer'} <= ours <= set(packed)
    assert Path(paxtune.__file__).parents[1] == ROOT
