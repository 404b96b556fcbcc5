"""Requests to stop a trial, or to pause the whole study, from any process.

They stand in the record of the study, which its runner reads at every measurement. The classes of
the experiment are not needed to write one.
"""

import dataclasses

from paxtune.study.record import Status, StudyRecord
from paxtune.study.store import StudyStore
from trainer.symbolic.errors import UserError


def request_pause(store: StudyStore) -> None:
    """Requests a pause of the whole study, until it is resumed."""
    store.update_study(lambda study: dataclasses.replace(study, pause_requested=True))


def request_stop(store: StudyStore, trial: int) -> None:
    """Requests the stop of a trial at its next measurement; UserError unless it is running."""
    try:
        status = store.trial(trial).status
    except KeyError:
        raise UserError(f'the study has no trial {trial}') from None
    if status is not Status.ACTIVE:
        raise UserError(f'trial {trial} is {status}: it is not running')
    store.update_study(lambda study: _with_requests(study, {*study.stop_requests, trial}))


def stopped_trials(store: StudyStore) -> set[int]:
    """Returns the trials that are to stop."""
    study = store.study()
    return set() if study is None else set(study.stop_requests)


def is_pause_requested(store: StudyStore) -> bool:
    """Returns True if a pause of the whole study was requested."""
    study = store.study()
    return study is not None and study.pause_requested


def resume(store: StudyStore) -> None:
    """Withdraws the request for a pause."""
    if is_pause_requested(store):
        store.update_study(lambda study: dataclasses.replace(study, pause_requested=False))


def forget(store: StudyStore, trial: int) -> None:
    """Withdraws the request to stop a trial: a later one may have its number."""
    if trial in stopped_trials(store):
        store.update_study(lambda study: _with_requests(study, {*study.stop_requests} - {trial}))


def _with_requests(study: StudyRecord, trials: set[int]) -> StudyRecord:
    return dataclasses.replace(study, stop_requests=tuple(sorted(trials)))
