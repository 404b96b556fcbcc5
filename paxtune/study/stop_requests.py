"""Stops that were asked for, by another process too: of a trial, or of the whole study.

They are notes of the study, which whoever runs it reads at every measurement. Nothing of the
study's experiment needs to be known to write one.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from paxtune.storage.vizier_protos import outcome
from paxtune.storage.vizier_store import Store, notes
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.service.remote_store import RemoteStore

    AnyStore: TypeAlias = Store | RemoteStore


def pause(store: 'AnyStore') -> None:
    """Asks for a pause of the whole study, until it is resumed."""
    store.update_study_notes(lambda _: {'pause': 'true'})


def stop(store: 'AnyStore', trial: int) -> None:
    """Asks for a trial to be stopped at its next measurement.

    Raises:
        UserError: there is no such trial, or it is not running.
    """
    try:
        state = outcome(store.trial(trial))
    except KeyError:
        raise UserError(f'the study has no trial {trial}') from None
    if state != 'active':
        raise UserError(f'trial {trial} is {state}: it is not running')
    store.update_study_notes(lambda known: _written({*_read(known), trial}))


def stopped_trials(store: 'AnyStore') -> set[int]:
    """The trials that are to be stopped."""
    return _read(_notes(store))


def is_paused(store: 'AnyStore') -> bool:
    """Whether a pause of the whole study was asked for."""
    return _notes(store).get('pause') == 'true'


def resume(store: 'AnyStore') -> None:
    """Takes back the request for a pause."""
    if is_paused(store):
        store.update_study_notes(lambda _: {'pause': 'false'})


def forget(store: 'AnyStore', trial: int) -> None:
    """Takes back the request to stop a trial: a later one may have its number."""
    if trial in stopped_trials(store):
        store.update_study_notes(lambda known: _written(_read(known) - {trial}))


def _notes(store: 'AnyStore') -> Mapping[str, str]:
    spec = store.study()
    return {} if spec is None else notes(spec)


def _read(known: Mapping[str, str]) -> set[int]:
    return set(json.loads(known.get('stop') or '[]'))


def _written(trials: set[int]) -> dict[str, str]:
    return {'stop': json.dumps(sorted(trials))}
