"""Retention of checkpoints: which trials keep theirs after they have ended."""

import itertools
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from absl import logging
from etils import epath

from paxtune.config.search import Search
from paxtune.objectives import pareto
from paxtune.study import replicates
from paxtune.study.record import Status
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import (
    attempt_directory,
    trial_directory,
    trials_with_directories,
)
from paxtune.study.trial_table import Trials, column
from trainer.runtime.directory import JobPath, has_link, is_local
from trainer.symbolic.errors import UserError

_CHECKPOINTS = 'checkpoints'

REMOVED = 'checkpoints.removed'
"""The new name of an emptied `checkpoints/`. It stays, and shows that they were deleted."""

_GB = 10**9


class CheckpointCleaner:
    """Removes the unneeded checkpoints of a study.

    Other processes may do so at the same time, and any of them may be killed: the next one finishes
    its work. Errors of a removal are logged.
    """

    def __init__(self, study: StudyView) -> None:
        self._study = study
        self._directories: dict[int, JobPath] = {}
        self._revision = 0
        self._holding: dict[int, Trial] = {}  # Ended trials that have, or had, checkpoints.
        self._done: set[int] = set()  # Their checkpoints were removed.
        self._bytes: dict[int, int] = {}  # Sizes of ended trials.
        self._has_warned = False

    def remove_unneeded(self) -> list[int]:
        """Removes checkpoints as the search demands (`Search.retention`).

        Checkpoints of unended trials stay, and those from which unended trials will start.
        Checkpoints of an earlier attempt are removed once a later attempt has saved.

        Returns:
            The trials that have none left, and had some.
        """
        if self._study.directory is None:
            return []
        trials = self._study.current
        self._note_ended(trials)
        # Functions have no checkpoints, mostly: then nothing needs an order of the trials.
        kept = _kept(self._study, trials, self._holding.values()) if self._holding else set()
        removed = []
        for trial in [*self._holding.values(), *_own(trials.unended)]:
            if not trial.is_terminal or trial.id in kept:
                self._remove_superseded(trial)
            elif self._remove_all(trial):
                removed.append(trial.id)
        return sorted(removed) + self._make_room(trials)

    def _note_ended(self, trials: Trials) -> None:
        """Looks for checkpoints of the trials that have ended since the call before."""
        changed = trials.since(self._revision)
        if changed is None:  # A trial was deleted, or this is the first call.
            self._holding.clear()
            self._bytes.clear()
            begun = trials_with_directories(self._study.directory)
            changed = [trial for trial in trials if trial.id in begun]
        self._revision = trials.revision
        for trial in _own(changed):
            if not trial.is_terminal:
                continue
            if trial.id not in self._done and self._has_checkpoints(trial):
                self._holding[trial.id] = trial
            if self._study.search.retention.max_disk_gb is not None:
                self._bytes[trial.id] = disk_bytes(self._directory(trial))

    def _has_checkpoints(self, trial: Trial) -> bool:
        parts = [attempt / name for attempt in self._attempts(trial) for name in self._parts]
        return any((part / name).exists() for part in parts for name in (_CHECKPOINTS, REMOVED))

    def _directory(self, trial: Trial) -> JobPath:
        if trial.id not in self._directories:
            self._directories[trial.id] = trial_directory(self._study.directory, trial)
        return self._directories[trial.id]

    def _remove_superseded(self, trial: Trial) -> None:
        if trial.attempt == 1:
            return
        from trainer.checkpoints.checkpoint import newest_checkpoint

        for name in self._parts:
            *earlier, last = self._attempts(trial)
            if newest_checkpoint(last / name / _CHECKPOINTS) is not None:
                for attempt in earlier:
                    self._remove(attempt / name)

    def _remove_all(self, trial: Trial) -> bool:
        parts = [attempt / name for attempt in self._attempts(trial) for name in self._parts]
        had = [self._remove(part) for part in parts]
        if None not in had:
            self._done.add(trial.id)
            self._holding.pop(trial.id, None)
        if trial.id in self._bytes:
            self._bytes[trial.id] = disk_bytes(self._directory(trial))
        if any(had):
            logging.info('The checkpoints of trial %d were removed', trial.id)
        return any(had)

    def _remove(self, part: JobPath) -> bool | None:
        if any(has_link(self._study.directory, part / name) for name in (_CHECKPOINTS, REMOVED)):
            logging.warning('%s has a symbolic link: nothing is removed there', part)
            return None
        return _remove(part)

    @property
    def _parts(self) -> Sequence[str]:
        return self._study.space.sub_experiments or ['']

    def _attempts(self, trial: Trial) -> list[JobPath]:
        return [
            attempt_directory(self._study.directory, trial, n + 1) for n in range(trial.attempt)
        ]

    def _make_room(self, trials: Trials) -> list[int]:
        limit = self._study.search.retention.max_disk_gb
        if limit is None or self._held(trials) <= limit * _GB:
            return []
        for trial in self._holding.values():  # Another process may have removed some.
            self._bytes[trial.id] = disk_bytes(self._directory(trial))
        held = self._held(trials)
        needed = _sources(trials)
        removed: list[int] = []
        for trial in reversed(list(_best_first(self._study, _own(trials)))):
            if held <= limit * _GB:
                return removed
            if trial.id in needed or trial.id not in self._holding:
                continue
            before = self._bytes[trial.id]
            if self._remove_all(trial):
                removed.append(trial.id)
            held += self._bytes[trial.id] - before
        if held > limit * _GB and not self._has_warned:
            self._has_warned = True
            logging.warning(
                'search.retention.max_disk_gb is %g, and trials hold %.3g GB that they need',
                limit,
                held / _GB,
            )
        return removed

    def _held(self, trials: Trials) -> int:
        unended = (disk_bytes(self._directory(trial)) for trial in _own(trials.unended))
        return sum(self._bytes.values()) + sum(unended)


def check(search: Search, directory: epath.PathLike | None) -> None:
    """Raises UserError if a search limits the disk space of a remote directory."""
    limit = search.retention.max_disk_gb
    if limit is not None and directory is not None and not is_local(directory):
        raise UserError(
            f'search.retention.max_disk_gb={limit:g}: the size of {os.fspath(directory)} cannot be '
            'measured: set it to None, and search.retention.best to the number of trials that keep '
            'their checkpoints'
        )


def remove_unneeded(study: StudyView) -> list[int]:
    """Removes checkpoints of a study: see `CheckpointCleaner.remove_unneeded`."""
    return CheckpointCleaner(study).remove_unneeded()


def require_weights(study: StudyView, trial: Trial) -> None:
    """Raises UserError with a remedy if the weights of an ended trial were removed."""
    if study.directory is None:
        return
    directory = attempt_directory(study.directory, trial)
    for name in study.space.sub_experiments or ['']:
        part = directory / name
        if (part / REMOVED).exists() and not (part / _CHECKPOINTS).exists():
            raise UserError(
                f'the weights of trial {trial.id} were removed: the search keeps those of the best '
                f'trials ({study.search.retention!r}). Let it keep more and retry the trial, or '
                'name a trial that has its weights'
            )


def disk_bytes(directory: JobPath) -> int:
    """Sums the sizes of the files below a directory; 0 where it is missing.

    A file with several names counts once: attempts share checkpoints.
    """
    sizes: dict[tuple[int, int], int] = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                found = os.lstat(os.path.join(parent, name))
            except FileNotFoundError:  # It was removed meanwhile.
                continue
            sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values())


def _own(trials: Iterable[Trial]) -> list[Trial]:
    return [trial for trial in trials if not trial.lineage.is_imported]


def _sources(trials: Trials) -> set[int]:
    """Finds the trials whose weights others are to begin with."""
    begun = (trial.lineage.weights_from for trial in trials.unended)
    return {source[0] for source in begun if source is not None}


def _kept(study: StudyView, trials: Trials, holding: Collection[Trial]) -> set[int]:
    """Finds the ended trials whose checkpoints stay; `holding` have, or had, checkpoints."""
    search = study.search
    if search.retention.best is None:
        return {trial.id for trial in holding}
    if search.warm_start == 'parent' or not search.rewards:
        # Any of them may become a parent; or nothing says which of them are good.
        return {trial.id for trial in holding if trial.state == 'COMPLETED'} | _sources(trials)
    own = _own(trials) if any(column(trials, _is_imported)) else trials
    best = _best(study, own, search.retention.best)
    # Any of these may become the representative of its configuration.
    best += replicates.pending(own, search.replicates)
    # A trial can be trained once more only with the weights that it began with.
    origins = {trial.lineage.warm_start for trial in best if trial.lineage.warm_start}
    return {trial.id for trial in best} | origins | _sources(trials)


def _is_imported(trial: Trial) -> bool:
    return trial.lineage.is_imported


def _best(study: StudyView, trials: Sequence[Trial], count: int) -> list[Trial]:
    """Lists the first completed trials of `_best_first`."""
    wanted = study.search.replicates
    if study.rewards and replicates.is_plain(trials, wanted):
        return [each.trial for each in replicates.top(trials, wanted, count)]
    ordered = _best_first(study, trials)
    completed = (trial for trial in ordered if trial.status is Status.COMPLETED)
    return list(itertools.islice(completed, count))


def _best_first(study: StudyView, trials: Sequence[Trial]) -> Iterator[Trial]:
    """Orders ended trials: the best, then trials stopped early, then all others.

    Several objectives rank by fronts, with the most different trials of a front first. Without any,
    later trials are better. The representatives of all configurations (`Study.best`) come before
    other replicates.
    """
    completed = [trial for trial in trials if trial.status is Status.COMPLETED]
    if study.rewards:
        found = replicates.leaderboard(trials, study.search.replicates)
        entries = list(_by_fronts(found)) if len(study.rewards) > 1 else found
        yield from (each.trial for each in entries)
        yield from (t for each in entries for t in each.trials if t is not each.trial)
        counted = {trial.id for each in entries for trial in each.trials}
        yield from (trial for trial in completed if trial.id not in counted)  # Were retried.
    else:
        yield from reversed(completed)
    others = [t for t in trials if t.is_terminal and t.status is not Status.COMPLETED]
    yield from sorted(others, key=lambda trial: trial.state)  # COMPLETED, then INFEASIBLE.


def _by_fronts(
    entries: Sequence[replicates.LeaderboardEntry],
) -> Iterator[replicates.LeaderboardEntry]:
    for is_complete in (True, False):
        left = [each for each in entries if each.is_complete == is_complete]
        while left:
            front = pareto.front([each.scores for each in left])
            members = [left[index] for index in front]
            spread = pareto.crowding_distances([each.scores for each in members])
            ordered = sorted(zip(spread, members, strict=True), key=lambda pair: -pair[0])
            yield from (member for _, member in ordered)
            left = [each for index, each in enumerate(left) if index not in {*front}]


def _remove(part: JobPath) -> bool | None:
    """Removes the checkpoints of a run; returns False without any, None if that fails."""
    if not isinstance(part, Path):
        return _remove_from_store(part)
    checkpoints, removed = part / _CHECKPOINTS, part / REMOVED
    try:
        _empty(removed)  # The process that removed them may have died before the end.
        try:
            # Renamed checkpoints do not count, whatever happens.
            checkpoints.rename(removed)
        except FileNotFoundError:
            return False
        _empty(removed)
    except OSError as error:
        logging.warning('%s cannot be removed: %s', checkpoints, error)
        return None
    return True


def _remove_from_store(part: epath.Path) -> bool | None:
    # No directory can be renamed: `REMOVED` is a file.
    from trainer.checkpoints.checkpoint import COMMITTED

    checkpoints = part / _CHECKPOINTS
    try:
        try:
            children = list(checkpoints.iterdir())
        except FileNotFoundError:
            return False
        (part / REMOVED).write_bytes(b'')
        # Without this file a checkpoint does not count, whatever happens.
        for child in children:
            (child / COMMITTED).unlink(missing_ok=True)
        checkpoints.rmtree(missing_ok=True)
    except Exception as error:  # gcsfs raises others.
        logging.warning('%s cannot be removed: %s', checkpoints, error)
        return None
    return True


def _empty(directory: Path) -> None:
    # Other processes may do the same.
    for _ in range(10):
        try:
            children = list(directory.iterdir())
        except FileNotFoundError:
            return
        for child in children:
            try:
                is_tree = child.is_dir() and not child.is_symlink()
                shutil.rmtree(child) if is_tree else child.unlink()
            except FileNotFoundError:
                continue
        if not children:
            return
