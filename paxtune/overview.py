"""What the database of a study says, without the classes of its experiment."""

import dataclasses
import datetime
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paxtune import pareto
from paxtune.decisions import size, spec_from_json
from paxtune.printing import Document, Table
from paxtune.store import DATABASE, TRIALS, Store, StudySpec, TrialProto, notes
from paxtune.study_record import StudyRecord
from paxtune.trial import OUTCOMES, outcome, reward_names
from trainer.errors import UserError

_COLUMNS = [
    'study', 'experiment', 'trials', 'num_trials', *OUTCOMES, 'best', 'front', 'created',
    'changed', 'done', 'problem',
]  # fmt: skip
_HOUR = 3600.0


@dataclasses.dataclass(frozen=True)
class Overview:
    """A study on one line.

    Attributes:
        experiment: the class of what is searched.
        num_trials: how many trials it is to have; None where that cannot be said.
        counts: the trials by outcome.
        best: the best reward; None where there is none, or more than one objective.
        front: how many trials no other is better than; None with one objective.
        created: when it was made.
        is_done: whether it needs no more trials, as `Study.is_done` says.
    """

    experiment: str
    num_trials: int | None
    counts: Mapping[str, int]
    best: float | None
    front: int | None
    created: datetime.datetime
    is_done: bool

    @classmethod
    def read(cls, path: Path) -> 'Overview':
        """Reads a database, which another process may be working on.

        Raises:
            UserError: it holds no study of this version.
        """
        store = Store(path, read_only=True)
        try:
            spec = store.study()
            if spec is None:
                raise UserError('nothing was written yet')
            record = StudyRecord.read(spec, path)
            return cls._of(spec, record, store.trials(), store.created())
        finally:
            store.close()

    @classmethod
    def _of(
        cls,
        spec: StudySpec,
        record: StudyRecord,
        trials: Sequence[TrialProto],
        created: datetime.datetime,
    ) -> 'Overview':
        value = json.loads(record.value)
        search = json.loads(record.search) if record.search else value['search']
        outcomes = list(map(outcome, trials))
        points = _points(
            spec, [t for t, how in zip(trials, outcomes, strict=True) if how == 'completed']
        )
        num_trials = search.get('num_trials')
        space_size = None
        if num_trials is None or len(trials) < num_trials:
            space_size = size(spec_from_json(record.spec))
            num_trials = num_trials or space_size
        exhausted_at = int(notes(spec).get('exhausted', -1))
        is_exhausted = 0 <= exhausted_at <= len(trials) or _all_tried(trials, space_size)
        has_all = num_trials is not None and len(trials) >= num_trials
        all_ended = not {'active', 'requested'} & {*outcomes}
        return cls(
            experiment=value.get('_type', 'Dict'),
            num_trials=num_trials,
            counts=Counter(outcomes),
            best=_reward(spec, max(points)[0]) if len(spec.metrics) == 1 and points else None,
            front=len(pareto.front(points)) if len(spec.metrics) > 1 else None,
            created=created,
            is_done=_budget_used(spec, search, trials, points)
            or (all_ended and (has_all or is_exhausted)),
        )


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


def _points(spec: StudySpec, completed: Sequence[TrialProto]) -> list[tuple[float, ...]]:
    """The rewards of trials, signed such that more is better."""
    if not spec.metrics:
        return []
    names = reward_names(len(spec.metrics))
    signs = [1.0 if each.goal == each.MAXIMIZE else -1.0 for each in spec.metrics]
    found = []
    for trial in completed:
        values = {metric.metric_id: metric.value for metric in trial.final_measurement.metrics}
        found.append(tuple(sign * values[name] for sign, name in zip(signs, names, strict=True)))
    return found


def _reward(spec: StudySpec, score: float) -> float:
    return score if spec.metrics[0].goal == spec.metrics[0].MAXIMIZE else -score


def _budget_used(
    spec: StudySpec,
    search: Mapping[str, Any],
    trials: Sequence[TrialProto],
    points: Sequence[tuple[float, ...]],
) -> bool:
    target = search.get('target_reward')
    if target is not None and points and max(points)[0] >= _reward(spec, target):
        return True
    limits = [search.get(name) for name in ('max_hours', 'max_device_hours')]
    if limits == [None, None]:
        return False
    run = [notes(trial) for trial in trials]
    seconds = [float(each.get('seconds') or 0.0) for each in run]
    weighed = [s * int(each.get('devices') or 0) for s, each in zip(seconds, run, strict=True)]
    return any(
        limit is not None and sum(spent) >= limit * _HOUR
        for limit, spent in zip(limits, (seconds, weighed), strict=True)
    )


def _all_tried(trials: Sequence[TrialProto], space_size: int | None) -> bool:
    if space_size is None or len(trials) < space_size:
        return False
    tried = {
        tuple(parameter.SerializeToString() for parameter in trial.parameters) for trial in trials
    }
    return len(tried) >= space_size
