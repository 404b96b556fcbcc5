"""Rebuilds the database of a study from its definition and the records of its trials."""

import contextlib
import dataclasses
import json
import os
import zlib
from collections import Counter
from pathlib import Path

from paxtune.search_space.decisions import spec_from_json
from paxtune.search_space.parameters import to_search_space
from paxtune.storage.codec import TrialProto, decode_json, decode_trial, unpack_trial
from paxtune.storage.database import Database
from paxtune.storage.stored_measurements import DamagedRecordError
from paxtune.storage.study_file import DATABASE, STUDY_FILE
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.record import StudyRecord
from paxtune.study.trial import TRIALS
from trainer.runtime.directory import partial_id
from trainer.symbolic.errors import UserError

_BROKEN = f'{DATABASE}.broken'
_DAMAGES = OSError, ValueError, KeyError, TypeError, RecursionError, zlib.error


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
        study = decode_json(StudyRecord, path.read_text())
    except (OSError, ValueError, DamagedRecordError) as error:
        raise UserError(
            f'{path} cannot be read, so the study cannot be recovered: {error}. '
            f'Restore {DATABASE} from a backup, or move the directory away and start again'
        ) from error
    protos, problems = _trials(directory)
    for left in directory.glob(f'.{DATABASE}.*.partial*'):  # A killed recovery leaves it.
        left.unlink(missing_ok=True)
    partial = directory / f'.{DATABASE}.{partial_id()}.partial'
    with contextlib.closing(VizierStore(Database(partial))) as store:
        store.create_study(study, to_search_space(spec_from_json(study.spec)))
        store.restore_protos(protos)
    # SQLite would apply the journal of the broken database to the new one.
    for name in (DATABASE, f'{DATABASE}-journal', f'{DATABASE}-wal', f'{DATABASE}-shm'):
        if (directory / name).exists():
            os.replace(directory / name, directory / name.replace(DATABASE, _BROKEN))
    os.replace(partial, database)
    counts = Counter(decode_trial(proto).status for proto in protos)
    counted = ', '.join(f'{count} {status}' for status, count in counts.items())
    kept = f' The broken file is {_BROKEN}.' if (directory / _BROKEN).exists() else ''
    recovered = f'Recovered {len(protos)} trials ({counted or "none"}) into {database}.{kept}'
    message = '\n'.join([*problems, f'{recovered} The same search command resumes.'])
    return Recovery([int(proto.id) for proto in protos], problems, message)


def _can_be_read(database: Path) -> bool:
    if not database.exists():
        return False
    try:
        with contextlib.closing(VizierStore(Database(database, read_only=True))) as store:
            return store.study() is not None and store.trials() is not None
    # The file may be anything: whatever it takes to read it may fail.
    except Exception:
        return False


def _trials(directory: Path) -> tuple[list[TrialProto], list[str]]:
    """Reads all trials by number, and lists the directories without a record."""
    found, problems = {}, []
    for folder in sorted((directory / TRIALS).glob('*')):
        try:
            proto = unpack_trial(json.loads((folder / 'trial.json').read_text())['record'])
            found[int(proto.id)] = proto
        except (*_DAMAGES, DamagedRecordError) as error:
            problems.append(f'{folder}: its trial.json cannot be read, and is left out: {error}')
    return [found[number] for number in sorted(found)], problems
