"""Directories of studies: each belongs to one study, and to those who share its lock."""

import contextlib
import dataclasses
from pathlib import Path

import pyglove as pg
import pytest

from paxtune.serve import main as serve
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import join_study, load_study, open_study
from paxtune.storage.study_file import DATABASE, UUID_FILE
from paxtune.study.study import Study
from paxtune.study.transitions import TurnLostError
from tests.factories.function_studies import search
from tests.factories.studies import ask
from tests.factories.toys import toy
from trainer.symbolic.errors import UserError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a study that has a trial."""
    with open_study(tmp_path / 'study', toy()):
        (tmp_path / 'study' / 'trials' / '0001-rate=1.0e-02').mkdir(parents=True)
    return tmp_path / 'study'


def test_a_study_whose_database_is_there_resumes(directory: Path) -> None:
    with open_study(directory, toy()) as study:
        assert study.trials == []


def test_a_space_may_be_a_dict(tmp_path: Path) -> None:
    with open_study(tmp_path, {'x': pg.oneof([1, 2])}, search=search()) as study:
        assert ask(study).decisions.keys() == {'x'}
    with open_study(tmp_path, pg.Dict(x=pg.oneof([1, 2])), search=search()) as study:
        assert len(study.trials) == 1
    width = pg.oneof([1, 2])
    with pytest.raises(UserError, match='x and y are one decision object'):
        open_study(None, {'x': width, 'y': width}, search=search())


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
    assert f'{directory} has the trials of another study' in message
    assert 'restore it' in message
    assert 'move the directory away' in message
    assert (directory / DATABASE).exists() == is_empty
    directory.rename(directory.with_name('before'))
    with open_study(directory, toy()) as study:
        assert study.trials == []


def test_no_new_study_of_a_service_adopts_the_trials(directory: Path) -> None:
    with pytest.raises(UserError, match='has the trials of another study'):
        open_study(directory, toy(), store=LocalStore(Database(None)))


def in_service(directory: Path) -> Study:
    """A study whose database is not in the directory of its trials."""
    return open_study(directory, toy(), store=LocalStore(Database(None)))


def test_a_directory_belongs_to_one_study_before_it_has_a_trial(tmp_path: Path) -> None:
    with in_service(tmp_path / 'a') as first, in_service(tmp_path / 'b') as second:
        owner = (tmp_path / 'a' / UUID_FILE).read_text()
        assert owner == first.record.uuid != second.record.uuid
        with pytest.raises(UserError, match='has the trials of another study'):
            in_service(tmp_path / 'a')
        with pytest.raises(UserError, match='has the trials of another study'):
            open_study(tmp_path / 'a', toy())
        assert not (tmp_path / 'a' / DATABASE).exists()
        # A worker, or a command, with the directory of another study.
        with pytest.raises(UserError, match=f'{tmp_path / "a"} belongs to another study'):
            join_study(second.store, tmp_path / 'a')
        assert (tmp_path / 'a' / UUID_FILE).read_text() == owner


def test_a_database_of_another_study_does_not_continue_its_trials(
    directory: Path, tmp_path: Path
) -> None:
    open_study(tmp_path / 'other', toy()).close()
    (tmp_path / 'other' / DATABASE).rename(directory / DATABASE)
    for opened in (lambda: open_study(directory, toy()), lambda: load_study(directory)):
        with pytest.raises(UserError, match='belongs to another study'):
            opened()


def test_those_who_write_to_a_study_exclude_who_needs_it_alone(tmp_path: Path) -> None:
    is_held = r'process \d+ is working there'
    with open_study(tmp_path, toy()) as first:
        with open_study(tmp_path, toy()) as second:
            assert ask(first).id != ask(second).id
        with pytest.raises(UserError, match=is_held):
            open_study(tmp_path, toy(), is_alone=True)
        with pytest.raises(UserError, match='another service, or a search, works with'):
            serve([f'--database={tmp_path / DATABASE}', '--port=0'])
        load_study(tmp_path).close()
    with contextlib.closing(Database(tmp_path / DATABASE)) as database:
        database.hold()  # As a service does.
        for read_only in (False, True):
            with contextlib.nullcontext() if read_only else pytest.raises(UserError, match=is_held):
                load_study(tmp_path, read_only).close()
        with pytest.raises(UserError, match=is_held):
            open_study(tmp_path, toy())
    open_study(tmp_path, toy(), is_alone=True).close()


def test_a_study_that_was_released_is_locked_by_what_it_hands_out(tmp_path: Path) -> None:
    with open_study(tmp_path, toy(), is_alone=True) as study:
        assert isinstance(study.store, LocalStore)
        study.store.release()
        open_study(tmp_path, toy(), is_alone=True).close()
        ask(study)
        with pytest.raises(UserError, match='is working there'):
            open_study(tmp_path, toy(), is_alone=True)


def test_a_suggestion_that_another_process_has_overtaken_is_refused(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as first, open_study(tmp_path, toy()) as second:
        with first.store.turn() as add:
            overtaken = dataclasses.replace(ask(second).view.record, holder=first.store.worker)
            with pytest.raises(TurnLostError, match='added in the meantime'):
                add(overtaken)
        assert len(first.trials) == 1


def test_a_study_that_is_opened_alone_excludes_all_others(tmp_path: Path) -> None:
    with open_study(tmp_path, toy(), is_alone=True):
        for is_alone in (False, True):
            with pytest.raises(UserError, match='is working there'):
                open_study(tmp_path, toy(), is_alone=is_alone)
    open_study(tmp_path, toy()).close()


def test_a_lock_that_is_a_link_changes_nothing_elsewhere(tmp_path: Path) -> None:
    (tmp_path / 'study').mkdir()
    (tmp_path / 'victim').write_text('mine')
    (tmp_path / 'study' / 'lock').symlink_to(tmp_path / 'victim')
    with pytest.raises(UserError, match='lock: cannot be locked'):
        open_study(tmp_path / 'study', toy())
    assert (tmp_path / 'victim').read_text() == 'mine'
