"""Retention of checkpoints: which trials keep theirs after they have ended."""

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import logging
from etils import epath

from paxtune.config.search import Search
from paxtune.objectives import pareto
from paxtune.study import replicates
from paxtune.study.record import Status
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import attempt_directory, trial_directory
from trainer.runtime.directory import JobPath, is_local
from trainer.symbolic.errors import UserError

_CHECKPOINTS = 'checkpoints'

REMOVED = 'checkpoints.removed'
"""The new name of an emptied `checkpoints/`. It stays, and shows that they were deleted."""

_GB = 10**9


class CheckpointCleaner:
    """Removes the unneeded checkpoints of a study.

    Others may do so at the same time, and any of them may be killed: what one leaves half removed
    counts no longer, and the next one finishes it. What cannot be removed is logged.
    """

    def __init__(self, study: StudyView) -> None:
        """Begins to look after a study. What was removed once is not looked for again."""
        self._study = study
        self._directories: dict[int, JobPath] = {}
        self._done: set[int] = set()
        self._bytes: dict[int, int] = {}  # Of trials that have ended.
        self._is_told = False

    def remove_unneeded(self) -> list[int]:
        """Removes checkpoints, by what the search says of them (`Search.retention`).

        Those of a trial that has not ended stay, and those that such a trial is to begin with. An
        earlier attempt's go when a later one has some of its own.

        Returns:
            The trials that have none left, and had some.
        """
        if self._study.directory is None:
            return []
        trials = [trial for trial in self._study.trials if not trial.lineage.is_imported]
        kept = _kept(self._study, trials)
        removed = []
        for trial in trials:
            if not trial.is_terminal or trial.id in kept:
                self._remove_superseded(trial)
            elif self._remove_all(trial):
                removed.append(trial.id)
        return removed + self._make_room(trials)

    def _directory(self, trial: Trial) -> JobPath:
        if trial.id not in self._directories:
            self._directories[trial.id] = trial_directory(self._study.directory, trial)
        return self._directories[trial.id]

    def _remove_superseded(self, trial: Trial) -> None:
        from trainer.checkpoints.checkpoint import newest_checkpoint

        if trial.attempt == 1:
            return
        for name in self._parts:
            *earlier, last = self._attempts(trial)
            if newest_checkpoint(last / name / _CHECKPOINTS) is not None:
                for attempt in earlier:
                    _remove(attempt / name)

    def _remove_all(self, trial: Trial) -> bool:
        if trial.id in self._done:
            return False
        parts = [attempt / name for attempt in self._attempts(trial) for name in self._parts]
        had = [_remove(part) for part in parts]
        if None not in had:
            self._done.add(trial.id)
        self._bytes.pop(trial.id, None)
        if any(had):
            logging.info('The checkpoints of trial %d were removed', trial.id)
        return any(had)

    @property
    def _parts(self) -> Sequence[str]:
        return self._study.sub_experiments or ['']

    def _attempts(self, trial: Trial) -> list[JobPath]:
        return [
            attempt_directory(self._study.directory, trial, n + 1) for n in range(trial.attempt)
        ]

    def _make_room(self, trials: Sequence[Trial]) -> list[int]:
        """Removes checkpoints until the trials hold no more than they may."""
        limit = self._study.search.retention.max_disk_gb
        if limit is None or self._held(trials) <= limit * _GB:
            return []
        self._bytes.clear()  # Another process may have removed some.
        held = self._held(trials)
        needed = _sources(trials)
        removed: list[int] = []
        for trial in reversed(list(_best_first(self._study, trials))):
            if held <= limit * _GB:
                return removed
            if trial.id in needed:
                continue
            before = self._held([trial])
            if self._remove_all(trial):
                removed.append(trial.id)
            held += self._held([trial]) - before
        if held > limit * _GB and not self._is_told:
            self._is_told = True
            logging.warning(
                'search.retention.max_disk_gb is %g, and trials hold %.3g GB that they need',
                limit,
                held / _GB,
            )
        return removed

    def _held(self, trials: Sequence[Trial]) -> int:
        held = 0
        for trial in trials:
            size = self._bytes.get(trial.id)
            if size is None:
                size = disk_bytes(self._directory(trial))
                if trial.is_terminal:
                    self._bytes[trial.id] = size
            held += size
        return held


def check(search: Search, directory: epath.PathLike | None) -> None:
    """Checks that what a search says of its checkpoints can be done where they are.

    Raises:
        UserError: it cannot.
    """
    limit = search.retention.max_disk_gb
    if limit is not None and directory is not None and not is_local(directory):
        raise UserError(
            f'search.retention.max_disk_gb={limit:g}: what is in {os.fspath(directory)} is not '
            'measured: set it to None, and say how many trials keep their checkpoints: '
            'search.retention.best'
        )


def remove_unneeded(study: StudyView) -> list[int]:
    """Removes the checkpoints that a study does not need: see `CheckpointCleaner`.

    Returns:
        The trials that have none left, and had some.
    """
    return CheckpointCleaner(study).remove_unneeded()


def require_weights(
    study_directory: JobPath | None, trial: Trial, sub_experiments: Sequence[str], search: Search
) -> None:
    """Checks that the weights of an ended trial were not removed.

    Args:
        study_directory: of the study; None for one in memory.
        trial: the trial.
        sub_experiments: names of what it trained, one after another; none where it is one.
        search: the configuration of the search.

    Raises:
        UserError: they were removed; the message says what to do.
    """
    if study_directory is None:
        return
    directory = attempt_directory(study_directory, trial)
    for name in sub_experiments or ['']:
        part = directory / name
        if (part / REMOVED).exists() and not (part / _CHECKPOINTS).exists():
            raise UserError(
                f'the weights of trial {trial.id} were removed: the search keeps those of the best '
                f'trials ({search.retention!r}). Let it keep more and retry the trial, or name '
                'one that has its weights'
            )


def disk_bytes(directory: JobPath) -> int:
    """The bytes of the files in a directory, and in those in there; 0 where it is missing.

    What several names lead to (attempts share checkpoints) counts once.
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


def _sources(trials: Sequence[Trial]) -> set[int]:
    """The trials whose weights others are to begin with."""
    begun = (trial.lineage.weights_from for trial in trials if not trial.is_terminal)
    return {source[0] for source in begun if source is not None}


def _kept(study: StudyView, trials: Sequence[Trial]) -> set[int]:
    """The trials that have ended, and whose checkpoints stay as long as there is room."""
    search = study.search
    if search.retention.best is None:
        return {trial.id for trial in trials}
    if search.warm_start == 'parent' or not search.rewards:
        # Any of them may become a parent; or nothing says which of them are good.
        return {trial.id for trial in trials if trial.state == 'COMPLETED'} | _sources(trials)
    candidates = (trial for trial in _best_first(study, trials) if _is_candidate(trial))
    best = list(itertools.islice(candidates, search.retention.best))
    # Which of them stands for its decisions is open.
    best += replicates.pending(trials, search.replicates)
    # A trial can be trained once more only with the weights that it began with.
    origins = {trial.lineage.warm_start for trial in best if trial.lineage.warm_start}
    return {trial.id for trial in best} | origins | _sources(trials)


def _is_candidate(trial: Trial) -> bool:
    return trial.status is Status.COMPLETED


def _best_first(study: StudyView, trials: Sequence[Trial]) -> Iterator[Trial]:
    """The trials that have ended: the best ones, then those stopped early, then the others.

    With several objectives those on the front come first, the most different ones of them first,
    then those on the front of the rest, and so on. Without any, later ones are better. Of each
    decision the trial that stands for it comes first (`Study.best`); its repeats come after all
    decisions.
    """
    candidates = [trial for trial in trials if _is_candidate(trial)]
    if study.rewards:
        found = replicates.leaderboard(trials, study.search.replicates)
        entries = list(_by_fronts(found)) if len(study.rewards) > 1 else found
        yield from (each.trial for each in entries)
        yield from (t for each in entries for t in each.trials if t is not each.trial)
        counted = {trial.id for each in entries for trial in each.trials}
        yield from (trial for trial in candidates if trial.id not in counted)  # Were retried.
    else:
        yield from reversed(candidates)
    others = [trial for trial in trials if trial.is_terminal and not _is_candidate(trial)]
    yield from sorted(others, key=lambda trial: trial.state)  # COMPLETED, then INFEASIBLE.


def _by_fronts(
    entries: Sequence[replicates.LeaderboardEntry],
) -> Iterator[replicates.LeaderboardEntry]:
    for is_complete in (True, False):
        yield from _fronts([each for each in entries if each.is_complete == is_complete])


def _fronts(left: Sequence[replicates.LeaderboardEntry]) -> Iterator[replicates.LeaderboardEntry]:
    while left:
        front = set(pareto.front([each.scores for each in left]))
        members = [left[index] for index in sorted(front)]
        spread = pareto.crowding_distances([each.scores for each in members])
        order = sorted(range(len(members)), key=lambda index: -spread[index])
        yield from (members[index] for index in order)
        left = [each for index, each in enumerate(left) if index not in front]


def _remove(part: JobPath) -> bool | None:
    """Removes the checkpoints of a run.

    Returns:
        Whether there were any; None where they cannot be removed.
    """
    if not isinstance(part, Path):
        return _remove_from_store(part)
    checkpoints, removed = part / _CHECKPOINTS, part / REMOVED
    try:
        _empty(removed)  # The process that removed them may have died before the end.
        try:
            # From here on they count no longer, whatever happens.
            checkpoints.rename(removed)
        except FileNotFoundError:
            return False
        _empty(removed)
    except OSError as error:
        logging.warning('%s cannot be removed: %s', checkpoints, error)
        return None
    return True


def _remove_from_store(part: epath.Path) -> bool | None:
    """As `_remove`, where no directory can be renamed: what says why there are none is a file."""
    from trainer.checkpoints.checkpoint import COMMITTED

    checkpoints = part / _CHECKPOINTS
    try:
        try:
            children = list(checkpoints.iterdir())
        except FileNotFoundError:
            return False
        (part / REMOVED).write_bytes(b'')
        # From here on they count no longer, whatever happens.
        for child in children:
            (child / COMMITTED).unlink(missing_ok=True)
        checkpoints.rmtree(missing_ok=True)
    # Whatever gcsfs raises.
    except Exception as error:
        logging.warning('%s cannot be removed: %s', checkpoints, error)
        return None
    return True


def _empty(directory: Path) -> None:
    """Deletes what is in a directory, where there is one. Others may do so at the same time."""
    for _ in range(10):
        try:
            children = list(directory.iterdir())
        except FileNotFoundError:
            return
        for child in children:
            try:
                shutil.rmtree(child) if child.is_dir() else child.unlink()
            except FileNotFoundError:
                continue
        if not children:
            return
