"""Studies below a directory that a new study learns from."""

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from absl import logging

from paxtune.search_space.decisions import decision_points, slot_ids, spec_from_json
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.study_file import DATABASE
from paxtune.study import transfer
from paxtune.study.plan import SearchPlan
from paxtune.study.record import PriorTrial, StudyRecord
from paxtune.study.study import Study
from paxtune.study.trial import TRIALS
from trainer.command import fitted
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError, in_short

MAX_STUDIES = 10
"""Studies of a directory that a new study learns from at most."""

MAX_TRIALS = 100
"""Trials of each of them: the best half, and others evenly."""

_MIN_OVERLAP = 0.5  # Share of the decisions of both studies that both have.


@dataclasses.dataclass(frozen=True)
class StudiesBelow:
    """All studies in a directory and below that are similar to a new one (`--learn_from`).

    Attributes:
        root: the directory.
        max_looked_at: studies whose spaces are read, the latest first.
        max_seconds: time after which no further study is read.
    """

    root: Path
    max_looked_at: int = 500
    max_seconds: float = 60.0


PriorStudy: TypeAlias = JobPath | StudiesBelow
"""A study to learn from, or a directory of studies."""


def similar_trials(
    below: StudiesBelow,
    plan: SearchPlan,
    own: JobPath | None,
    load: Callable[[Path], Study],
) -> list[PriorTrial]:
    """Collects the trials of the studies below a directory that fit into a search.

    The studies with the most decisions in common come first, then those with the same goals, then
    the latest. Each one that cannot be read is skipped with a line.

    Args:
        below: where the studies are.
        plan: the search.
        own: the directory of the search, which is left out.
        load: opens a study to read.

    Raises:
        UserError: there is no such directory.
    """
    if not below.root.is_dir():
        raise UserError(
            f'--learn_from={below.root}: there is no such directory: name one with studies below'
        )
    started, ids = time.monotonic(), frozenset(plan.space.ids)
    goals = tuple(reward.goal for reward in plan.search.rewards)
    paths = sorted(_others(below.root, own), key=_changed, reverse=True)
    ranked = []
    for place, path in enumerate(paths):
        if place >= below.max_looked_at or time.monotonic() - started > below.max_seconds:
            _skip(below.root, f'{len(paths) - place} older studies were not looked at')
            break
        if (record := _record(path)) is not None:
            overlap = _overlap(ids, record)
            ranked.append((overlap, record.goals == goals, -place, path))
    found, count = list[PriorTrial](), 0
    for overlap, _, _, path in sorted(ranked, reverse=True):
        if overlap < _MIN_OVERLAP or count == MAX_STUDIES:
            break
        if time.monotonic() - started > below.max_seconds:
            _skip(below.root, f'reading took {below.max_seconds:g} seconds: the rest is left out')
            break
        trials = _trials(path, plan, load)
        found += trials
        count += bool(trials)
    return found


def databases(root: Path) -> Iterator[Path]:
    """The databases of the studies in a directory and below."""
    for directory, folders, files in os.walk(root):
        if DATABASE in files:
            yield Path(directory) / DATABASE
            # Thousands of directories, and no studies.
            folders[:] = [name for name in folders if name != TRIALS]
        folders[:] = sorted(name for name in folders if not name.endswith('.deleted'))


def _others(root: Path, own: JobPath | None) -> Iterator[Path]:
    mine = own.resolve() if isinstance(own, Path) else None
    return (each.parent for each in databases(root) if each.parent.resolve() != mine)


def _changed(directory: Path) -> float:
    try:
        return (directory / DATABASE).stat().st_mtime
    except OSError:
        return 0.0


def _record(directory: Path) -> StudyRecord | None:
    """Reads the record of a study; None, and a line, if that fails."""
    try:
        store = LocalStore(Database(directory / DATABASE, read_only=True))
        try:
            return store.study()
        finally:
            store.close()
    # The file may be of any version, or anything else: whatever it takes to read it may fail.
    except Exception as error:
        _skip(directory, in_short(error))
        return None


def _overlap(ids: frozenset[str], record: StudyRecord) -> float:
    """Share of the decisions of both studies that both have."""
    others = _ids(record.spec)
    return len(ids & others) / max(len(ids | others), 1)


@functools.lru_cache(maxsize=64)
def _ids(spec: str) -> frozenset[str]:
    try:
        points = decision_points(spec_from_json(spec))
    except ValueError:
        return frozenset()
    return frozenset(id_ for point in points for id_ in slot_ids(point))


def _trials(directory: Path, plan: SearchPlan, load: Callable[[Path], Study]) -> list[PriorTrial]:
    """The trials of one study that fit; a line, and none, if it cannot be read."""
    try:
        with load(directory) as source:
            return transfer.spread(
                transfer.prior_trials(source, plan.space, plan.search), MAX_TRIALS
            )
    # As for the record.
    except Exception as error:
        _skip(directory, in_short(error))
        return []


def _skip(directory: Path, reason: str) -> None:
    text = reason if reason.startswith(str(directory)) else f'{directory}: {reason}'
    text = f'--learn_from: {text}'
    logging.warning('%s', fitted(text, sys.stderr, len('WARNING:absl:')))
