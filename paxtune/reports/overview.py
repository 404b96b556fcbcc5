import contextlib
import dataclasses
import datetime
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paxtune.config.budget import Budget
from paxtune.objectives import pareto
from paxtune.reports.tables import Document, Table
from paxtune.search_space.decisions import size, spec_from_json
from paxtune.service.study_location import DirectoryLocation, StudyLocation
from paxtune.storage.study_file import DATABASE
from paxtune.study import replicates, stopping_criteria
from paxtune.study.record import Status, StudyRecord, TrialRecord
from paxtune.study.trial import TRIALS, Trial, TrialContext
from trainer.symbolic.errors import UserError

_COLUMNS = [
    'study', 'experiment', 'trials', 'num_trials', *Status, 'best', 'front', 'created',
    'changed', 'done', 'problem',
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Overview:
    """A study on one line.

    Attributes:
        experiment: the `--exp` of the study, or else the class of what is searched.
        num_trials: how many trials it is to have; None where that cannot be said.
        counts: the trials by outcome.
        best: the best reward, or mean of repeats; None where there is none, or more than one
            objective.
        standard_error: of that mean; None without one.
        num_replicates: the number of trials in that mean.
        front: how many trials no other is better than; None with one objective.
    """

    experiment: str
    num_trials: int | None
    counts: Mapping[Status, int]
    best: float | None
    best_trial: int | None
    front: int | None
    created: datetime.datetime
    is_done: bool
    standard_error: float | None = None
    num_replicates: int = 1

    @classmethod
    def read(cls, location: StudyLocation) -> 'Overview':
        """Reads a study, also a running one; raises UserError unless there is one."""
        with contextlib.closing(location.store()) as store:
            study = store.study()
            if study is None:
                raise UserError('nothing was written yet')
            return cls.of(study, bare_trials(study, store.trials()), store.created())

    @classmethod
    def of(
        cls, study: StudyRecord, trials: Sequence[Trial], created: datetime.datetime
    ) -> 'Overview':
        """Summarizes a study and all of its trials."""
        value = json.loads(study.value)
        search = json.loads(study.search) if study.search else value['search']
        signs = _signs(study)
        times = search['replicates']
        entries = [each for each in replicates.leaderboard(trials, times) if each.scores]
        best = entries[0] if entries and len(signs) == 1 else None
        num_trials = search['budget']['trials']
        if num_trials is None and (space_size := size(spec_from_json(study.spec))) is not None:
            num_trials = space_size * times
        return cls(
            experiment=study.exp or study.experiment.rpartition('.')[2],
            num_trials=num_trials,
            counts=Counter(trial.status for trial in trials),
            best=best.rewards[0] if best is not None else None,
            best_trial=best.trial.id if best is not None else None,
            front=_size_of_front(entries) if len(signs) > 1 else None,
            created=created,
            is_done=_budget_used(search, trials, signs)
            or (
                all(trial.is_terminal for trial in trials)
                and (
                    len(trials) >= num_trials
                    or (replicates.due(trials, times) is None and _is_exhausted(study, trials))
                )
            ),
            standard_error=best.standard_errors[0] if best is not None else None,
            num_replicates=len(best.trials) if best is not None else 1,
        )


def bare_trials(study: StudyRecord, records: Sequence[TrialRecord]) -> list[Trial]:
    """Shows trials without the classes of their experiment: their decisions cannot be read."""
    context = TrialContext(_signs(study))
    return [Trial(record, context) for record in records]


def _signs(study: StudyRecord) -> list[float]:
    return [1.0 if goal == 'maximize' else -1.0 for goal in study.goals]


def listing(root: Path) -> Document:
    """The studies in a directory and below, one that cannot be read with the reason.

    Raises:
        UserError: there is no such directory.
    """
    if not root.is_dir():
        raise UserError(f'{root}: there is no such directory: name the one that holds the studies')
    found = [DirectoryLocation(str(path.parent)) for path in databases(root)]
    return table_of(found, f'There are no studies in {root} and below.')


def table_of(studies: Sequence[StudyLocation], without: str) -> Document:
    """A row for each study, with the reason where one cannot be read; a remark without any."""
    rows = [_row(each) for each in studies]
    cells = [row | _cells(row) for row in rows]
    columns = ['study', 'trials', 'best', 'front', 'done', 'states', 'changed', 'experiment']
    table = Table.compact(cells, [*columns, 'problem'], {})
    return Document(rows, rows, _COLUMNS, [table], '' if rows else without)


def databases(root: Path) -> Iterator[Path]:
    """The databases of the studies in a directory and below."""
    for directory, folders, files in os.walk(root):
        if DATABASE in files:
            yield Path(directory) / DATABASE
            # Thousands of directories, and no studies.
            folders[:] = [name for name in folders if name != TRIALS]
        folders[:] = sorted(name for name in folders if not name.endswith('.deleted'))


def _row(location: StudyLocation) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(_COLUMNS) | {'study': str(location)}
    if location.directory is not None:
        modified = os.stat(location.directory / DATABASE).st_mtime
        row['changed'] = datetime.datetime.fromtimestamp(modified, datetime.UTC)
    try:
        found = Overview.read(location)
    # The file may be of any version, or anything else: whatever it takes to read it may fail.
    except Exception as error:
        reason = str(error).split('\n')[0].removeprefix(f'{location}/{DATABASE}: ')
        return row | {'problem': reason or type(error).__name__}
    return row | {
        'experiment': found.experiment,
        'trials': sum(found.counts.values()),
        'num_trials': found.num_trials,
        **{str(how): found.counts.get(how, 0) for how in Status},
        'best': found.best,
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


def _size_of_front(entries: Sequence[replicates.LeaderboardEntry]) -> int:
    found = [each for each in entries if each.is_complete] or entries
    return len(pareto.front([each.scores for each in found]))


def _budget_used(
    search: Mapping[str, Any], trials: Sequence[Trial], signs: Sequence[float]
) -> bool:
    sign = signs[0] if signs else 1.0
    budget = Budget(**{name: limit for name, limit in search['budget'].items() if name != '_type'})
    return stopping_criteria.used_up(budget, trials, sign, search['replicates']) is not None


def _is_exhausted(study: StudyRecord, trials: Sequence[Trial]) -> bool:
    if study.exhausted is not None and study.exhausted <= len(trials):
        return True
    space_size = size(spec_from_json(study.spec))
    if space_size is None or len(trials) < space_size:
        return False
    return len({tuple(trial.record.parameters.items()) for trial in trials}) >= space_size
