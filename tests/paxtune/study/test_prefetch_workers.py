"""Suggestions that are made ahead for several workers."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paxtune.config.budget import Budget
from paxtune.service.client import Client
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.remote_store import RemoteStore
from paxtune.service.server import Server
from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.study import Study
from tests.paxtune.asking import Digest, finish
from tests.paxtune.service.conftest import until
from tests.paxtune.studies import ask, rewrite
from tests.paxtune.study.prefetching import opened, seen, settle, was_ahead


class Service:
    """A study in a service, and its workers."""

    def __init__(self, **fields: Any) -> None:
        self._database, self._fields = Database(None), fields
        self.coordinator = StudyCoordinator(VizierStore(self._database), lease_seconds=1000.0)
        self._server = Server(lambda study: self.coordinator)
        self._server.start()
        self._studies: list[Study] = []

    def study(self, worker: str) -> Study:
        client = Client(f'127.0.0.1:{self._server.port}', 'study', patience=5.0)
        self._studies.append(
            opened(Path('anywhere'), store=RemoteStore(client, worker), **self._fields)
        )
        return self._studies[-1]

    def close(self) -> None:
        for study in self._studies:
            study.close()
        self._server.stop(0)
        self._database.close()


@pytest.fixture
def anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures('anywhere')
def test_a_service_notes_what_was_open_when_a_trial_began() -> None:
    with contextlib.closing(Service()) as made:
        a, b = made.study('a'), made.study('b')
        one = ask(a)
        settle(a)
        two = ask(b)
        settle(b)
        finish(a, one)
        three = ask(a)
        settle(a)
        finish(a, three)
        four = ask(a)
        assert [trial.id for trial in (one, two, three, four)] == [1, 2, 3, 4]
        notes = [sorted(trial.record.snapshot or ()) for trial in (one, two, three, four)]
        assert notes == [[], [1], [2], [2]]
        assert seen(three) == '1:pending 2:pending'
        assert seen(four) == '1:completed 2:pending 3:pending'
        # Only the service says so.
        rewrite(a, 4, snapshot={1: None, 3: None})
        assert a.trial(4).record.snapshot == {2: None}


@pytest.mark.usefixtures('anywhere')
@pytest.mark.slow
def test_workers_do_not_wait_for_suggestions() -> None:
    """Trials last longer than suggestions, and end one after the other."""
    count, workers = 12, 3
    with contextlib.closing(Service(budget=Budget(count), algorithm=Digest(seconds=0.05))) as made:
        ending = threading.Lock()

        def work(study: Study) -> None:
            trial = study.ask()
            while trial is not None:
                with ending:
                    until(
                        lambda: len(study.trials) == count or study.trials[-1].record.is_prefetched,
                        30,
                    )
                    finish(study, trial)
                    trial = study.ask()

        with ThreadPoolExecutor(workers) as threads:
            studies = [made.study(f'worker{i}') for i in range(workers)]
            list(threads.map(work, studies))
        trials = studies[0].trials
    assert [trial.id for trial in trials] == list(range(1, count + 1))
    assert all(was_ahead(trial) for trial in trials[workers:])
    assert any(trial.record.snapshot for trial in trials)
    # All was made of what is recorded.
    for trial in trials[1:]:
        states = {id_: state for id_, state in (e.split(':') for e in seen(trial).split())}
        then = trials[trial.id - 2].record.snapshot
        assert then is not None
        pending = {int(id_) for id_, state in states.items() if state == 'pending'}
        assert pending == {*then, trial.id - 1}
