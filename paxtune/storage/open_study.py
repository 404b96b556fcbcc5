import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyglove as pg
from absl import logging

from paxtune.config.search import Search
from paxtune.search_space.parameters import to_search_space
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.similar_studies import PriorStudy, StudiesBelow, similar_trials
from paxtune.storage.study_file import (
    DATABASE,
    how_to_recover,
    owner,
    require_own,
    take,
    write_definition,
)
from paxtune.storage.vizier_store import database
from paxtune.study import code_versions, transfer
from paxtune.study.definition import (
    ChangedStudyError,
    is_correctable,
    validate_unchanged,
)
from paxtune.study.plan import SearchPlan
from paxtune.study.record import PriorTrial, StudyRecord
from paxtune.study.redefinition import redefined
from paxtune.study.store import StudyStore
from paxtune.study.study import Study
from paxtune.study.trial import TRIALS
from trainer.command import fitted
from trainer.runtime.directory import JobPath, job_path, locked
from trainer.symbolic.errors import UserError
from trainer.symbolic.identity import validate_decisions


def open_study(
    directory: str | os.PathLike[str] | None,
    value: Any,
    data: Mapping[str, str] | None = None,
    *,
    search: Search | None = None,
    priors: Sequence[Study] = (),
    store: StudyStore | None = None,
    is_alone: bool = False,
) -> Study:
    """Creates a study, or resumes an existing one.

    Other processes may open the study of a directory, too. Each trial is handed out once.

    Args:
        directory: where its trials write, made if it is missing; None keeps the study in memory. A
            local one, unless a service keeps the study.
        value: a `Tunable`, any other symbolic value with decisions in it, or a dict.
        data: fingerprints of the data that its trials see, by input.
        search: the configuration of the search; None where `value.search` holds it.
        priors: studies that the algorithm may learn from; used when the study is created.
        store: keeps the study; `<directory>/study.db` by default.
        is_alone: no other process may write to the study until it is closed.

    Raises:
        UserError: the space cannot be searched, or the existing study is of another
            experiment or of other data. The search's budgets may differ. Or the directory belongs
            to another study, or another process works there alone.
    """
    if type(value) is dict:
        validate_decisions(value)  # A `pg.Dict` holds copies.
        value = pg.Dict(value)
    plan = SearchPlan.compile(value, search, data or {})
    return open_plan(directory, plan, priors=priors, store=store, is_alone=is_alone)


def open_plan(
    directory: str | os.PathLike[str] | None,
    plan: SearchPlan,
    *,
    priors: Sequence[Study | PriorStudy] = (),
    store: StudyStore | None = None,
    may_correct: bool = False,
    is_alone: bool = False,
) -> Study:
    """Creates the study of a plan, or resumes an existing one: see `open_study`.

    Args:
        priors: studies to learn from, their directories, or directories of similar studies; read
            when the study is created.
        may_correct: replace a local study of another experiment, or of other data, in which no
            trial has a reward, and none is running.
        is_alone: as for `open_study`.
    """
    path = None if directory is None or store else database(directory)
    folder = None if directory is None else job_path(directory)
    if folder is not None and path is None:
        folder.mkdir(parents=True, exist_ok=True)
    # Another process may create the study, and then take the directory: this is looked at first.
    taken = folder if folder is not None and (_has_trials(folder) or owner(folder)) else None
    if taken is not None and path is not None and not (path.exists() and path.stat().st_size):
        require_no_trials(taken)  # Before a database is made.
    if path is not None:
        with locked(path.parent, is_shared=not is_alone):
            pass  # Nor is one made where another process excludes this one.
    learnt = functools.cache(functools.partial(_learnt, plan, priors, folder))
    if store is None and (path is None or not path.exists()):
        learnt()  # An error comes before a database is made.
    store = store or LocalStore(Database(path))
    try:
        if isinstance(store, LocalStore):
            store.hold(is_alone)
        if taken is not None and store.study() is None:
            require_no_trials(taken)
        record = _record(store, folder, plan, learnt, may_correct)
        if path is not None:
            write_definition(path.parent, record)
        if folder is not None:
            take(folder, record.uuid)
    except BaseException:
        store.close()
        raise
    return Study(folder, plan, record, store)


def _learnt(
    plan: SearchPlan, priors: Sequence[Study | PriorStudy], folder: JobPath | None
) -> list[PriorTrial]:
    found = list[PriorTrial]()
    for each in priors:
        if isinstance(each, StudiesBelow):
            taken = {os.path.realpath(trial.source) for trial in found}
            similar = similar_trials(each, plan, folder, load_study)
            found += [it for it in similar if os.path.realpath(it.source) not in taken]
        elif isinstance(each, Study):
            found += transfer.priors(each, plan.space, plan.search)
        else:
            with load_study(each) as source:
                found += transfer.priors(source, plan.space, plan.search)
    return found


def _record(
    store: StudyStore,
    folder: JobPath | None,
    plan: SearchPlan,
    learnt: Callable[[], list[PriorTrial]],
    may_correct: bool,
) -> StudyRecord:
    """Creates the study, or brings the stored one up to date; returns its record."""
    if store.study() is None:
        new = plan.record(folder is None, learnt())
        # Another process may create it in the meantime.
        if store.create_study(new, to_search_space(plan.space.spec)):
            return new
    stored = store.study()
    assert stored is not None
    if folder is not None:
        require_own(folder, stored.uuid)
    # The priors stay the same after its creation.
    record = plan.record(folder is None, stored.priors)
    try:
        validate_unchanged(stored, record, folder)
    except ChangedStudyError as error:
        if not may_correct or folder is None or not isinstance(store, LocalStore):
            raise
        record = dataclasses.replace(record, uuid=stored.uuid)
        _correct(store, folder, plan, record, error)
        return record
    max_id = store.max_id()
    if line := code_versions.warning(stored, plan.code, max_id):
        text = f'{folder or "the study"}: {line}'
        logging.warning('%s', fitted(text, sys.stderr, len('WARNING:absl:')))

    def updated(current: StudyRecord) -> StudyRecord:
        return code_versions.continued(redefined(current, record), plan.code, max_id)

    return stored if updated(stored) == stored else store.update_study(updated)


def _correct(
    store: LocalStore,
    folder: JobPath,
    plan: SearchPlan,
    record: StudyRecord,
    error: ChangedStudyError,
) -> None:
    """Replaces a study whose trials have no reward, and are not running; else raises the error."""
    if not may_replace(store, plan):
        raise error
    moved = _move_aside(folder)
    with store.database.transaction():
        store.delete_study()
        store.create_study(record, to_search_space(plan.space.spec))
    anew = f'No trial there has a reward, so the study starts again.{moved}'
    logging.warning('%s\n%s', error.changes, anew)


def may_replace(store: LocalStore, plan: SearchPlan) -> bool:
    """Returns True if the study has no reward, and no trial of it is running."""
    stored, trials = store.study(), store.trials()
    assert stored is not None
    is_running = any(each.holder and store.is_alive(each.holder) for each in trials)
    # Sub-experiments have their rewards last, whatever was measured before.
    has_late_rewards = bool(plan.space.sub_experiments)
    return not has_late_rewards and not is_running and is_correctable(stored, trials)


def _move_aside(directory: JobPath) -> str:
    """Moves the directories of trials away, and renders their new place; '' without any."""
    if not _has_trials(directory):
        return ''
    names = (directory / f'replaced_{TRIALS}_{i}' for i in itertools.count(1))
    aside = next(each for each in names if not each.exists())
    (directory / TRIALS).rename(aside)
    return f' The files of its trials are in {aside}.'


def _has_trials(directory: JobPath) -> bool:
    trials = directory / TRIALS
    return trials.is_dir() and any(trials.iterdir())


def require_no_trials(directory: JobPath) -> None:
    """Raises UserError if a directory without a study has trials, or belonged to a study."""
    if not _has_trials(directory) and not owner(directory):
        return
    raise UserError(
        f'--job_log_dir: {directory} has the trials of another study, from whose '
        f'checkpoints a new study would resume. If {DATABASE} was lost, or the study of a service, '
        'restore it. To start again, move the directory away, or use another --job_log_dir'
        + how_to_recover(Path(directory))
    )


def load_study(directory: str | os.PathLike[str], read_only: bool = True) -> Study:
    """Opens an existing study with its configuration.

    Args:
        read_only: change nothing; another process may be working on it.

    Raises:
        UserError: there is no study, or its experiment cannot be rebuilt: import its module first.
            A study that is only read needs no module, except to make the experiment of a trial.
    """
    path = database(directory)
    if not path.exists():
        hint = how_to_recover(path.parent)
        raise UserError(f'There is no study in {path.parent}: {path.name} is missing{hint}')
    store = LocalStore(Database(path, read_only))
    if not read_only:
        store.hold()
    return join_study(store, path.parent, read_only)


def join_study(
    store: StudyStore, directory: JobPath | None, may_lack_classes: bool = False
) -> Study:
    """Opens the study of a store with its configuration.

    Args:
        store: keeps it; closed where this raises.
        directory: where its trials write; None where only others know.
        may_lack_classes: see `SearchPlan.of`.

    Raises:
        UserError: there is none, its experiment cannot be rebuilt, or the directory belongs to
            another study.
    """
    try:
        record = store.study()
        if record is None:
            raise UserError(f'There is no study in {directory}: nothing was written yet.')
        if directory is not None:
            require_own(directory, record.uuid)
        plan = SearchPlan.of(record, str(directory or 'the study'), may_lack_classes)
        return Study(directory, plan, record, store)
    except BaseException:
        store.close()
        raise
