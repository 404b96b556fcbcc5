"""`study.json`: the definition of a study beside its database, from which it can be rebuilt."""

from pathlib import Path

from paxtune.study.record import StudyRecord
from trainer.runtime.directory import write_text

DATABASE = 'study.db'
"""The file of a study in its directory."""

STUDY_FILE = 'study.json'


def write_definition(directory: Path, record: StudyRecord) -> None:
    """Writes the record of a study, unless it is there already."""
    from paxtune.storage.codec import encode_json

    path, text = directory / STUDY_FILE, encode_json(record)
    if not path.exists() or path.read_text() != text:
        write_text(path, text)


def how_to_recover(directory: Path) -> str:
    """Renders the command that rebuilds a study; empty where nothing is there to do so."""
    if not (directory / STUDY_FILE).exists():
        return ''
    return (
        '. To rebuild it from the records of its trials:\n'
        f'  python -m paxtune.studies recover {directory}'
    )
