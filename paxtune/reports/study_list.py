import contextlib
import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paxtune.analysis.study_poller import StudyPoller, source_of
from paxtune.analysis.study_state import StudyState
from paxtune.reports.tables import Document, Table
from paxtune.service.study_location import DirectoryLocation, StudyLocation
from paxtune.storage.similar_studies import databases
from paxtune.storage.study_file import DATABASE
from paxtune.study.record import Status
from trainer.symbolic.errors import UserError

_COLUMNS = [
    'study', 'experiment', 'trials', 'num_trials', *Status, 'best', 'front', 'created',
    'changed', 'done', 'problem',
]  # fmt: skip


def listing(root: Path) -> Document:
    """The studies in a directory and below; an unreadable one with the reason.

    Raises:
        UserError: there is no such directory.
    """
    if not root.is_dir():
        raise UserError(f'{root}: there is no such directory: name the directory of the studies')
    found = [DirectoryLocation(str(path.parent)) for path in databases(root)]
    return table_of(found, f'There are no studies in {root} and below.')


def table_of(studies: Sequence[StudyLocation], without: str) -> Document:
    """A row for each study, with the reason where one cannot be read; a remark without any."""
    rows = [row_of(each) for each in studies]
    cells = [row | _cells(row) for row in rows]
    columns = ['study', 'trials', 'best', 'front', 'done', 'states', 'changed', 'experiment']
    table = Table.compact(cells, [*columns, 'problem'], {})
    return Document(rows, rows, _COLUMNS, [table], '' if rows else without)


def stamp(directory: Path) -> int:
    """The time of the last change of a study, in nanoseconds; the database writes ahead of it."""
    times = [0]
    for name in (DATABASE, f'{DATABASE}-wal'):
        with contextlib.suppress(OSError):
            times.append(os.stat(directory / name).st_mtime_ns)
    return max(times)


def unread(directory: Path) -> dict[str, Any]:
    """The row of a study that is not read."""
    changed = datetime.datetime.fromtimestamp(stamp(directory) / 1e9, datetime.UTC)
    return dict.fromkeys(_COLUMNS) | {'study': str(directory), 'changed': changed}


def row_of(location: StudyLocation, state: StudyState | None = None) -> dict[str, Any]:
    """The row of a study, with the reason where it cannot be read.

    Args:
        location: of the study.
        state: of the study; None reads it.
    """
    row: dict[str, Any] = dict.fromkeys(_COLUMNS) | {'study': str(location)}
    try:
        if location.directory is not None:
            row = unread(Path(location.directory)) | {'study': str(location)}
        if state is not None:
            return row | _facts(state)
        with contextlib.closing(location.store()) as store:
            return row | _facts(StudyPoller(source_of(store, str(location))).poll())
    # The file may be of any version, or anything else: whatever it takes to read it may fail.
    except Exception as error:
        reason = str(error).split('\n')[0].removeprefix(f'{location}/{DATABASE}: ')
        return row | {'problem': reason or type(error).__name__}


def _facts(found: StudyState) -> dict[str, Any]:
    return {
        'experiment': found.record.name('') or None,
        'trials': len(found.trials),
        'num_trials': found.num_trials,
        **{str(how): found.counts.get(how, 0) for how in Status},
        'best': None if found.best is None else found.best.rewards[0],
        'front': found.front,
        'created': found.created,
        'done': found.is_done,
    }


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    cells = {}
    if row['changed'] is not None:
        cells['changed'] = f'{row["changed"].astimezone():%Y-%m-%d %H:%M}'
    if row['trials'] is not None:
        cells['trials'] = f'{row["trials"]}/{row["num_trials"] or "?"}'
        cells['states'] = ', '.join(f'{row[how]} {how}' for how in Status if row[how])
    return cells
