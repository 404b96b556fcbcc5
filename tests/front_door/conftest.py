"""The home of a new user."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.front_door import files, terminal


@pytest.fixture
def home() -> Iterator[Path]:
    """The user's files."""
    with files.home() as directory:
        yield directory


@pytest.fixture
def entered(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's files, in the current directory of this process."""
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    before = {*sys.modules}
    yield home
    for name in {*sys.modules} - before:
        if name.startswith('my_'):
            del sys.modules[name]


@pytest.fixture(scope='package')
def _fitted() -> Iterator[Path]:
    with files.home() as directory:
        terminal.run(directory, '-m', 'paxtune.search', '--exp=my_fit.Fit').passed()
        yield directory / 'runs'


@pytest.fixture
def fitted(home: Path, _fitted: Path) -> Path:
    """The user's files with a study of `my_fit.Fit` that is done."""
    shutil.copytree(_fitted, home / 'runs')
    return home
