"""`python -m paxtune.studies` on a study that a service keeps."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paxtune.config.budget import Budget
from paxtune.service import tokens
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.registry import StudyRegistry
from paxtune.service.remote_store import RemoteStore
from paxtune.service.schema import RequestRejectedError
from paxtune.service.server import Server
from paxtune.storage.database import Database
from paxtune.storage.open_study import open_study
from paxtune.storage.vizier_store import VizierStore
from paxtune.studies.__main__ import main
from paxtune.study import stop_requests
from paxtune.study.study import Study
from tests.factories.studies import ask, finish, rename_module, run
from tests.factories.toys import search, toy
from tests.paxtune.service.conftest import client_of
from trainer.symbolic.errors import UserError


@pytest.fixture
def worker(server: Server, tmp_path: Path) -> Iterator[Study]:
    """A worker's study, with a completed trial and one that is its worker's."""
    store = RemoteStore(client_of(server), 'w-1')
    with open_study(tmp_path, toy(search=search(budget=Budget(4))), store=store) as study:
        finish(ask(study))
        ask(study).report(10, {'loss': 0.5})
        yield study


@pytest.mark.pax('--study')
def test_it_is_shown(worker: Study, told: Callable[..., str]) -> None:
    content = json.loads(told('show', '--format=json'))
    assert content['trials']['completed'] == 1
    assert content['directory'] is None
    out = told('show', '--trial=2')
    assert 'w-1' in out
    assert 'claimed' in out
    assert [row['trial'] for row in json.loads(told('trials', '--format=json'))] == [1, 2]
    best = json.loads(told('best', '--format=json'))
    assert (best['trials'][0]['trial'], best['train']) == (1, None)
    assert 'rate' in told('diff', 1, 2)


def test_it_is_watched_to_its_end(
    worker: Study, told: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(ended, 'wait', lambda _: run_on(worker))
    monkeypatch.setattr(
        'trainer.runtime.interrupt.ended_by_signal', lambda: contextlib.nullcontext(ended)
    )
    out = told('show', '--watch')
    assert 'mine: 1 of 4 trials: 1 completed, 1 active' in out
    assert '2      w-1     1        10    0.5     claimed' in out
    assert out.endswith('the study is done\n')


def run_on(study: Study) -> None:
    study.open_trial(2).complete()
    run(study)


def test_trials_are_added_while_workers_work(worker: Study, told: Callable[..., str]) -> None:
    assert told('add', 'rate=0.0125', '--draw').startswith('Trial 3 will run')
    assert told('retry', 1).startswith('Trial 4 will run')
    worker.open_trial(2).complete()
    third = ask(worker)
    assert (third.id, third.decisions['rate'], third.lineage.origin) == (3, 0.0125, 'added')
    finish(third)
    fourth = ask(worker)
    assert (fourth.lineage.retry_of, fourth.decisions) == (1, worker.trial(1).decisions)


def test_an_exported_study_can_be_imported(
    worker: Study, told: Callable[..., str], tmp_path: Path
) -> None:
    worker.open_trial(2).complete()
    told('export', f'--out={tmp_path / "study.json"}')
    assert told('import', tmp_path / 'study.json').startswith(
        '2 of 2 trials were added to the study'
    )
    assert [trial.lineage.is_imported for trial in worker.trials] == [False, False, True, True]


def test_the_studies_of_a_service_are_listed(worker: Study, told: Callable[..., str]) -> None:
    (row,) = json.loads(told('list', '--format=json'))
    assert row['study'].endswith('/mine')
    assert (row['trials'], row['completed'], row['active'], row['changed']) == (2, 1, 1, None)
    assert '2/4' in told('list')


def test_a_study_of_a_service_is_deleted_and_its_workers_end(
    worker: Study, told: Callable[..., str], tmp_path: Path
) -> None:
    finish(worker.open_trial(2))
    assert told('delete', '--yes').startswith('Deleted: ')
    assert 'The service has no studies.' in told('list')
    with pytest.raises(RequestRejectedError, match='there is no such study'):
        ask(worker)
    with pytest.raises(UserError, match='has no such study'):
        told('delete', '--yes')
    # Another one may have its name, and has none of its trials.
    assert isinstance(worker.store, RemoteStore)
    store = RemoteStore(worker.store._client)
    with open_study(tmp_path / 'new', toy(rate=0.5), store=store) as new:
        assert new.trials == []
        assert worker.store.ids() == []


def test_a_study_is_shown_without_its_classes_and_not_changed(
    worker: Study, told: Callable[..., str], database: Database, registry: StudyRegistry
) -> None:
    trials = told('trials')
    rename_module(VizierStore(database, 'mine'), 'tests.factories.toys', 'gone_toys')
    registry._open.clear()  # The service starts again.
    assert told('trials') == trials
    assert 'experiment  Toy' in told('show')
    with pytest.raises(UserError, match=r'the classes gone_toys.* import gone_toys'):
        told('retry', 1)


def test_trials_are_stopped_and_the_study_pauses(worker: Study, told: Callable[..., str]) -> None:
    assert told('stop', 2) == 'To be stopped at the next measurement: trial 2.\n'
    assert stop_requests.stopped_trials(worker.store) == {2}
    assert 'will pause at its next measurement' in told('stop')
    assert stop_requests.is_pause_requested(worker.store)
    worker.open_trial(2).complete()
    assert 'there is nothing to pause' in told('stop')
    with pytest.raises(UserError, match='trial 2 is completed: it is not running'):
        told('stop', 2)


@pytest.mark.parametrize(
    ('name', 'argv', 'message'),
    [
        ('show', ['--study=other'], '--study=other: the service at .* has no such study'),
        ('show', ['--study=a:x'], '--study=a:x: study: expected'),
        ('show', ['--study=me/x'], '--study=me/x: a Vizier client created the study'),
        ('show', ['--study='], 'select a study with --study=NAME'),
        ('show', ['--trial=9'], 'the study has no trial 9: it has 1 to 2'),
        ('delete', ['--yes'], '1 trials are running'),
        ('delete', [], r'nothing was deleted. With --yes, .*/mine would be: 2 trials'),
        ('delete', ['2', '--yes'], 'trial 2 stays: w-1 runs it'),
        ('delete', ['1'], r'nothing was deleted\. With --yes, trial 1 would be'),
        ('add', ['rat=1'], 'rat is no decision of this experiment'),
    ],
)
def test_impossible_commands_are_rejected(
    worker: Study, told: Callable[..., str], name: str, argv: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        told(name, *argv)
    assert len(worker.trials) == 2


def test_flags_of_a_service_want_a_service(tmp_path: Path) -> None:
    for flag in ('--study=mine', '--tls', '--token_file=x', '--tls_ca=x'):
        with pytest.raises(UserError, match='is for a service: give its address'):
            main(['show', str(tmp_path), flag])


def test_without_its_token_nothing_is_shown(
    told: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(tokens.VARIABLE)
    with pytest.raises(UserError, match='--token_file'):
        told('show')


def test_the_error_of_a_failing_service_names_it(
    worker: Study, told: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: StudyCoordinator, **_: Any) -> None:
        raise RuntimeError('broken')

    monkeypatch.setattr(StudyCoordinator, 'changes', fail)
    with pytest.raises(UserError, match='/mine: the study cannot be read, or written: the'):
        told('show')
