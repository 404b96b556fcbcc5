"""Rebuilds the database of a study from its definition and the records of its trials."""

import contextlib
import dataclasses
import os
from collections import Counter
from pathlib import Path

import msgspec

from paxtune.search_space.decisions import spec_from_json
from paxtune.search_space.parameters import to_search_space
from paxtune.storage.codec import (
    MAX_STUDY_BYTES,
    MAX_TRIAL_BYTES,
    decode_trial,
    encode_trial,
    unpack_trial,
)
from paxtune.storage.database import Database
from paxtune.storage.record_json import decode_json
from paxtune.storage.study_file import DATABASE, STUDY_FILE
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.record import Status, StudyRecord, TrialRecord
from paxtune.study.record_checks import (
    DamagedRecordError,
    Rules,
    check_study,
    check_trial,
    is_of_trial,
)
from paxtune.study.trial import TRIALS
from trainer import command
from trainer.runtime.directory import partial_id
from trainer.symbolic.errors import UserError

MAX_RECOVERED_BYTES = 2**29
"""Size limit of all trials of a study that is recovered: small files may hold large records."""

_MAX_FILE_BYTES = 8 * MAX_TRIAL_BYTES  # A trial is in it twice: for people, and packed.
_BROKEN = f'{DATABASE}.broken'


@dataclasses.dataclass(frozen=True)
class Recovery:
    """Result of a recovery.

    Attributes:
        trials: the numbers of the rebuilt trials.
        problems: a line for each trial that is left out, with the reason.
        message: the whole report, for people.
    """

    trials: list[int]
    problems: list[str]
    message: str


def recover(directory: Path) -> Recovery:
    """Rebuilds the database of a study, and keeps the broken one beside it.

    The rebuilt trials have their numbers, measurements, times and states of the algorithm. Trials
    that had not begun are lost: the search suggests them again.

    Args:
        directory: of the study, where no search works.

    Raises:
        UserError: the study can be read, or its definition cannot.
    """
    database = directory / DATABASE
    if _can_be_read(database):
        raise UserError(f'{database} can be read: there is nothing to recover')
    path = directory / STUDY_FILE
    try:
        study = decode_json(StudyRecord, _text(path, MAX_STUDY_BYTES))
        rules = check_study(study)
    except (OSError, ValueError, DamagedRecordError) as error:
        raise UserError(
            f'{path} cannot be read, so the study cannot be recovered: {error}. '
            f'Restore {DATABASE} from a backup, or move the directory away and start again'
        ) from error
    for left in directory.glob(f'.{DATABASE}.*.partial*'):  # A killed recovery leaves it.
        left.unlink(missing_ok=True)
    partial = directory / f'.{DATABASE}.{partial_id()}.partial'
    with contextlib.closing(VizierStore(Database(partial))) as store:
        store.create_study(study, to_search_space(spec_from_json(study.spec)))
        found, problems = _restore(store, directory, rules)
    # SQLite would apply the journal of the broken database to the new one.
    for name in (DATABASE, f'{DATABASE}-journal', f'{DATABASE}-wal', f'{DATABASE}-shm'):
        if (directory / name).exists():
            os.replace(directory / name, directory / name.replace(DATABASE, _BROKEN))
    os.replace(partial, database)
    states = ', '.join(f'{count} {status}' for status, count in Counter(found.values()).items())
    kept = f' The broken file is {_BROKEN}.' if (directory / _BROKEN).exists() else ''
    trials = f'{command.counted(len(found), "trial")} ({states or "none"})'
    recovered = f'Recovered {trials} into {database}.{kept}'
    message = '\n'.join([*problems, f'{recovered} The same search command resumes.'])
    return Recovery([*found], problems, message)


def _can_be_read(database: Path) -> bool:
    if not database.exists():
        return False
    try:
        with contextlib.closing(VizierStore(Database(database, read_only=True))) as store:
            for proto in store.protos():
                decode_trial(proto)
            return store.study() is not None
    # The file may be anything: whatever it takes to read it may fail.
    except Exception:
        return False


class _TrialFile(msgspec.Struct):
    """The part of a trial.json that a recovery needs; the rest is skipped."""

    record: str


def _restore(
    store: VizierStore, directory: Path, rules: Rules
) -> tuple[dict[int, Status], list[str]]:
    """Restores trials by number, one at a time, and lists the directories without a record."""
    found: dict[int, Status] = {}
    problems, left = [], MAX_RECOVERED_BYTES
    with store.database.transaction():
        for folder in sorted((directory / TRIALS).glob('*')):
            try:
                record, size = _read_trial(folder / 'trial.json', left)
                check_trial(record, rules)
                if record.id in found or not is_of_trial(folder.name, record.id):
                    raise DamagedRecordError(f'it is of another trial, {record.id}')
                store.restore_protos([encode_trial(record)])
            except (OSError, ValueError, DamagedRecordError) as error:
                reason = f'{error}'.split('\n')[0]
                problems.append(
                    f'{folder}: its trial.json cannot be read, and is left out: {reason}'
                )
                continue
            found[record.id], left = record.status, left - size
    return dict(sorted(found.items())), problems


def _read_trial(path: Path, left: int) -> tuple[TrialRecord, int]:
    """Reads the record of a trial, and the size of its bytes; see `MAX_RECOVERED_BYTES`."""
    packed = decode_json(_TrialFile, _text(path, _MAX_FILE_BYTES)).record
    record, size = unpack_trial(packed)
    if record.created is None:
        raise DamagedRecordError('it was never added')
    if size > left:
        raise DamagedRecordError(f'the study has more than {MAX_RECOVERED_BYTES:,} bytes')
    return record, size


def _text(path: Path, max_bytes: int) -> str:
    with path.open('rb') as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise DamagedRecordError(f'it has more than {max_bytes:,} bytes')
    return content.decode()
