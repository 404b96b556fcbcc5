"""Studies, and where they are kept, for tests."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from paxtune import pyglove_backend
from paxtune.storage.open_study import open_study
from paxtune.studies.__main__ import main as studies
from tests.factories.studies import ask, mixed, run
from tests.factories.toys import OBJECTIVES, search, toy
from tools.servers.postgres import PostgresMissingError, PostgresServer


@pytest.fixture
def study(tmp_path):
    with open_study(tmp_path, toy()) as study:
        yield study


@pytest.fixture
def alone():
    """Each test has its own loops."""
    pyglove_backend.forget()


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `python -m paxtune.studies`; returns what it prints."""

    def show(*argv: object) -> str:
        assert studies([str(each) for each in argv]) == 0
        return capsys.readouterr().out

    return show


@pytest.fixture(scope='session')
def postgres():
    """A PostgreSQL server; tests that stop it start it again."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(PostgresServer.started())
        except PostgresMissingError as error:
            pytest.skip(f'no PostgreSQL server: {error}')
        yield server


@pytest.fixture(scope='session')
def some_studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies, made once; tests leave them as they are."""
    root = tmp_path_factory.mktemp('studies')
    mixed(root / 'mixed')
    with open_study(root / 'deep' / 'er' / 'done', toy()) as study:
        run(study)
    with open_study(root / 'front', toy(search=search(objective=OBJECTIVES))) as study:
        for loss, accuracy in ((0.5, 0.5), (0.25, 0.25), (0.75, 0.25), (0.125, 0.5), (1, 0.75)):
            trial = ask(study)
            trial.report(1, {'loss': loss, 'accuracy': accuracy})
            trial.complete()
    with open_study(root / 'measured', toy(search=search(objective=None))) as study:
        run(study)
    return root
