"""Studies that are created where the trials of another one are."""

from pathlib import Path

import pytest

from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import open_study
from paxtune.storage.vizier_store import DATABASE
from tests.paxtune.toys import toy
from trainer.symbolic.errors import UserError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a study that has a trial."""
    with open_study(tmp_path, toy()):
        (tmp_path / 'trials' / '0001-rate=1.0e-02').mkdir(parents=True)
    return tmp_path


def test_a_study_whose_database_is_there_resumes(directory: Path) -> None:
    with open_study(directory, toy()) as study:
        assert study.trials == []


@pytest.mark.parametrize('is_empty', [False, True])
def test_without_its_database_no_new_study_adopts_the_trials(
    directory: Path, is_empty: bool
) -> None:
    (directory / DATABASE).unlink()
    if is_empty:
        (directory / DATABASE).touch()
    with pytest.raises(UserError) as caught:
        open_study(directory, toy())
    message = str(caught.value)
    assert f'{directory / "trials"} has the trials of another study' in message
    assert 'restore it' in message
    assert 'move the trials away' in message
    assert (directory / DATABASE).exists() == is_empty
    (directory / 'trials').rename(directory / 'before')
    with open_study(directory, toy()) as study:
        assert study.trials == []


def test_no_new_study_of_a_service_adopts_the_trials(directory: Path) -> None:
    with pytest.raises(UserError, match='has the trials of another study'):
        open_study(directory, toy(), store=LocalStore(Database(None)))
