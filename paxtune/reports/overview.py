"""What the database of a study says, without the classes of its experiment."""

import dataclasses
import datetime
import json
import os
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paxtune.objectives import pareto
from paxtune.reports.tables import Document, Table
from paxtune.search_space.decisions import size, spec_from_json
from paxtune.storage.database import Database
from paxtune.storage.study_metadata import StudyRecord
from paxtune.storage.vizier_protos import OUTCOMES
from paxtune.storage.vizier_store import DATABASE, TRIALS, Store, StudySpec, TrialProto, notes
from paxtune.study import replicates, stopping_criteria
from paxtune.study.trial import Trial
from trainer.symbolic.errors import UserError

_COLUMNS = [
    'study', 'experiment', 'trials', 'num_trials', *OUTCOMES, 'best', 'front', 'created',
    'changed', 'done', 'problem',
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Overview:
    """A study on one line.

    Attributes:
        experiment: the class of what is searched.
        num_trials: how many trials it is to have; None where that cannot be said.
        counts: the trials by outcome.
        best: the best reward, or mean of repeats; None where there is none, or more than one
            objective.
        best_trial: the trial that has it.
        front: how many trials no other is better than; None with one objective.
        created: when it was made.
        is_done: whether it needs no more trials, as `Study.is_done` says.
    """

    experiment: str
    num_trials: int | None
    counts: Mapping[str, int]
    best: float | None
    best_trial: int | None
    front: int | None
    created: datetime.datetime
    is_done: bool

    @classmethod
    def read(cls, path: Path) -> 'Overview':
        """Reads a database, which another process may be working on.

        Raises:
            UserError: it holds no study of this version.
        """
        store = Store(Database(path, read_only=True))
        try:
            spec = store.study()
            if spec is None:
                raise UserError('nothing was written yet')
            return cls.of(spec, store.trials(), store.created(), path)
        finally:
            store.close()

    @classmethod
    def of(
        cls,
        spec: StudySpec,
        protos: Sequence[TrialProto],
        created: datetime.datetime,
        source: Path,
    ) -> 'Overview':
        """Of a study, as its store has it.

        Args:
            spec: what is said of it.
            protos: all of its trials.
            created: when it was made.
            source: where it is, for people.

        Raises:
            UserError: it is no study of this version.
        """
        record = StudyRecord.read(spec, source)
        value = json.loads(record.value)
        search = json.loads(record.search) if record.search else value['search']
        trials = bare_trials(spec, protos)
        signs = _signs(spec)
        times = search.get('repeats') or 1  # An older version knew of none.
        standings = [each for each in replicates.standings(trials, times) if each.scores]
        best = standings[0] if standings and len(signs) == 1 else None
        num_trials = search.get('num_trials')
        if num_trials is None and (space_size := size(spec_from_json(record.spec))) is not None:
            num_trials = space_size * times
        return cls(
            experiment=value.get('_type', 'Dict'),
            num_trials=num_trials,
            counts=Counter(trial.outcome for trial in trials),
            best=best.rewards[0] if best is not None else None,
            best_trial=best.trial.id if best is not None else None,
            front=_size_of_front(standings) if len(signs) > 1 else None,
            created=created,
            is_done=_budget_used(search, trials, signs)
            or (
                all(trial.is_terminal for trial in trials)
                and (
                    len(trials) >= num_trials
                    or (
                        replicates.due(trials, times) is None
                        and _is_exhausted(spec, record, protos)
                    )
                )
            ),
        )


def bare_trials(spec: StudySpec, protos: Sequence[TrialProto]) -> list[Trial]:
    """Trials that can tell how far they are and how they ended, but not what they are of."""
    signs = _signs(spec)
    header: Any = types.SimpleNamespace(signs=signs, rewards=signs)
    return [Trial(proto, header) for proto in protos]


def _signs(spec: StudySpec) -> list[float]:
    return [1.0 if each.goal == each.MAXIMIZE else -1.0 for each in spec.metrics]


def listing(root: Path) -> Document:
    """The studies in a directory and below, one that cannot be read with the reason.

    Raises:
        UserError: there is no such directory.
    """
    if not root.is_dir():
        raise UserError(f'{root}: there is no such directory: name the one that holds the studies')
    rows = [_row(path) for path in databases(root)]
    shown = [row | {how: row.get(how) or None for how in OUTCOMES} | _ratio(row) for row in rows]
    columns = ['study', 'experiment', 'trials', *OUTCOMES, 'best', 'front', 'changed', 'done']
    table = Table(shown, [*columns, 'problem'])
    remark = '' if rows else f'There are no studies in {root} and below.'
    return Document(rows, rows, _COLUMNS, [table], remark)


def databases(root: Path) -> Iterator[Path]:
    """The databases of the studies in a directory and below."""
    for directory, folders, files in os.walk(root):
        if DATABASE in files:
            yield Path(directory) / DATABASE
            # Thousands of directories, and no studies.
            folders[:] = [name for name in folders if name != TRIALS]
        folders.sort()


def _row(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(_COLUMNS)
    changed = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
    row |= {'study': str(path.parent), 'changed': changed}
    try:
        found = Overview.read(path)
    # The file may be of any version, or anything else: whatever it takes to read it may fail.
    except Exception as error:
        reason = str(error).split('\n')[0].removeprefix(f'{path}: ')
        return row | {'problem': reason or type(error).__name__}
    return row | {
        'experiment': found.experiment.rpartition('.')[2],
        'trials': sum(found.counts.values()),
        'num_trials': found.num_trials,
        **{how: found.counts.get(how, 0) for how in OUTCOMES},
        'best': found.best,
        'front': found.front,
        'created': found.created,
        'done': found.is_done,
    }


def _ratio(row: Mapping[str, Any]) -> dict[str, str]:
    known = row['trials'] is not None
    return {'trials': f'{row["trials"]}/{row["num_trials"] or "?"}'} if known else {}


def _size_of_front(standings: Sequence[replicates.Standing]) -> int:
    found = [each for each in standings if each.is_whole] or standings
    return len(pareto.front([each.scores for each in found]))


def _budget_used(
    search: Mapping[str, Any], trials: Sequence[Trial], signs: Sequence[float]
) -> bool:
    names = ('max_hours', 'max_device_hours', 'target_reward')
    limits: Any = types.SimpleNamespace(**{name: search.get(name) for name in names})
    limits.repeats = search.get('repeats') or 1
    return stopping_criteria.used_up(limits, trials, signs[0] if signs else 1.0) is not None


def _is_exhausted(spec: StudySpec, record: StudyRecord, protos: Sequence[TrialProto]) -> bool:
    if 0 <= int(notes(spec).get('exhausted', -1)) <= len(protos):
        return True
    space_size = size(spec_from_json(record.spec))
    if space_size is None or len(protos) < space_size:
        return False
    tried = {tuple(each.SerializeToString() for each in proto.parameters) for proto in protos}
    return len(tried) >= space_size
