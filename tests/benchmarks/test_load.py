"""The workers of `benchmarks/service_load.py`, and the studies of `benchmarks/large_study.py`."""

from pathlib import Path

import pytest

from benchmarks import large_study
from benchmarks.load.workers import Paxtune
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.server import Server
from paxtune.storage.database import Database
from paxtune.storage.open_study import load_study
from paxtune.storage.vizier_store import VizierStore
from paxtune.study.record import Status


def test_a_worker_of_a_service_does_all_that_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = Database(None)
    coordinator = StudyCoordinator(VizierStore(database))
    with Server(lambda study: coordinator) as server:
        Paxtune.prepare()
        worker = Paxtune(f'127.0.0.1:{server.port}')
        worker.fill(3)
        worker.suggest()
        worker.report()
        worker.complete()
        assert worker.trials() == 4
    database.close()


@pytest.mark.parametrize('name', ['ranges', 'experiment'])
def test_large_studies_have_trials_that_ended(name: str, tmp_path: Path) -> None:
    large_study.make(tmp_path, name, 20)
    with load_study(tmp_path) as study:
        assert [trial.status for trial in study.trials].count(Status.INFEASIBLE) == 2
        assert study.best is not None
        assert len(study.best.measurements) == len(large_study.STEPS)
