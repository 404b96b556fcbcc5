"""Files beside the database of a study.

`study.json` has the definition, from which the study can be rebuilt. `study.uuid` names the study
that a directory of trials belongs to.
"""

import contextlib
import os
from pathlib import Path

from paxtune.study.record import StudyRecord
from trainer.runtime.directory import JobPath, partial_id, write_text
from trainer.symbolic.errors import UserError

DATABASE = 'study.db'
"""The file of a study in its directory."""

STUDY_FILE = 'study.json'
UUID_FILE = 'study.uuid'


def write_definition(directory: Path, record: StudyRecord) -> None:
    """Writes the record of a study, unless it exists."""
    from paxtune.storage.record_json import encode_json

    path, text = directory / STUDY_FILE, encode_json(record)
    if not path.exists() or path.read_text() != text:
        write_text(path, text)


def how_to_recover(directory: Path) -> str:
    """Renders the command that rebuilds a study; empty without records of trials."""
    if not (directory / STUDY_FILE).exists():
        return ''
    return (
        '. To rebuild it from the records of its trials:\n'
        f'  python -m paxtune.studies recover {directory}'
    )


def owner(directory: JobPath) -> str:
    """Reads the uuid of the study that owns a directory; '' where none does."""
    try:
        return (directory / UUID_FILE).read_bytes()[:32].decode('ascii', 'replace')
    except FileNotFoundError:
        return ''


def require_own(directory: JobPath, study: str) -> None:
    """Raises UserError where a directory belongs to another study than that of a uuid."""
    found = owner(directory)
    if found not in ('', study):
        raise UserError(
            f'--job_log_dir: {directory} belongs to another study ({UUID_FILE}: {found!r}, '
            f'expected {study!r}). Use another --job_log_dir, or move that directory away'
        )


def take(directory: JobPath, study: str) -> None:
    """Gives a directory to a study, for good; raises UserError where another one has it."""
    path = directory / UUID_FILE
    if isinstance(path, Path) and not path.exists():
        # One study creates the file, on a network file system, too.
        own = path.with_name(f'.{UUID_FILE}.{partial_id()}.partial')
        write_text(own, study)
        with contextlib.suppress(FileExistsError):
            os.link(own, path)
        own.unlink()
    elif not path.exists():
        write_text(path, study)
    require_own(directory, study)
