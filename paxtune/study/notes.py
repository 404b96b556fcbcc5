"""Notes of people on trials and on the study, which any process may write while a search runs.

They stand in the record of the study: its workers alone write the records of trials.
"""

import dataclasses

from paxtune.study.record import StudyRecord
from paxtune.study.store import StudyStore
from trainer.symbolic.errors import UserError

MAX_LENGTH = 10_000
"""Characters of a note."""


def write_note(store: StudyStore, trial: int, text: str) -> None:
    """Replaces the note on a trial; an empty text removes it.

    Raises:
        UserError: there is no such trial, or the text is longer than `MAX_LENGTH`.
    """
    text = _checked(text)
    try:
        store.trial(trial)
    except KeyError:
        raise UserError(f'the study has no trial {trial}') from None
    store.update_study(lambda study: _with_note(study, trial, text))


def write_study_note(store: StudyStore, text: str) -> None:
    """Replaces the note on the study; an empty text removes it.

    Raises:
        UserError: the text is longer than `MAX_LENGTH`.
    """
    text = _checked(text)
    store.update_study(lambda study: dataclasses.replace(study, note=text))


def forget(store: StudyStore, trial: int) -> None:
    """Removes the note on a trial: a later one may have its number."""
    study = store.study()
    if study is not None and trial in study.notes:
        store.update_study(lambda current: _with_note(current, trial, ''))


def _checked(text: str) -> str:
    text = text.strip()
    if len(text) > MAX_LENGTH:
        raise UserError(f'a note has at most {MAX_LENGTH:,} characters, not {len(text):,}')
    return text


def _with_note(study: StudyRecord, trial: int, text: str) -> StudyRecord:
    others = {number: note for number, note in study.notes.items() if number != trial}
    return dataclasses.replace(study, notes=others | ({trial: text} if text else {}))
