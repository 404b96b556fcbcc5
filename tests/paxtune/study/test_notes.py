"""Notes on trials and on studies."""

import contextlib
from pathlib import Path

import pytest

from paxtune.service.study_location import DirectoryLocation
from paxtune.storage.open_study import open_study
from paxtune.study import notes
from tests.factories.function_studies import SPACE, search
from trainer.symbolic.errors import UserError


def test_notes_are_written_while_another_process_works_alone(tmp_path: Path) -> None:
    where = DirectoryLocation(str(tmp_path))
    with open_study(tmp_path, SPACE, search=search(), is_alone=True) as study:
        trial = study.ask()
        assert trial is not None
        with contextlib.closing(where.store(can_write=True)) as other:
            notes.write_note(other, 1, ' see <b> ')
            with pytest.raises(UserError, match='no trial 7'):
                notes.write_note(other, 7, 'text')
            with pytest.raises(UserError, match='10,000 characters'):
                notes.write_note(other, 1, 'x' * 10_001)
        trial.report(1, {'loss': 1.0})
        trial.complete()
        assert study.record.notes == {1: 'see <b>'}
    with contextlib.closing(where.store(can_write=True)) as other:
        notes.write_note(other, 1, '')
        record = other.study()
        assert record is not None and record.notes == {}


def test_notes_go_with_their_trial() -> None:
    study = open_study(None, SPACE, search=search())
    assert study.ask() is not None
    notes.write_note(study.store, 1, 'text')
    study.delete_trial(1)
    assert study.record.notes == {}


def test_a_study_has_a_note_of_its_own(tmp_path: Path) -> None:
    where = DirectoryLocation(str(tmp_path))
    with open_study(tmp_path, SPACE, search=search(), is_alone=True) as study:
        assert study.ask() is not None
        with contextlib.closing(where.store(can_write=True)) as other:
            notes.write_note(other, 1, 'of the trial')
            notes.write_study_note(other, ' *why* ')
            with pytest.raises(UserError, match='10,000 characters'):
                notes.write_study_note(other, 'x' * 10_001)
        assert (study.record.note, study.record.notes) == ('*why*', {1: 'of the trial'})
    with open_study(tmp_path, SPACE, search=search()) as again:
        assert again.record.note == '*why*'
        notes.write_study_note(again.store, '')
        assert again.record.note == ''
