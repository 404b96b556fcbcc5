"""The contract of engines, checked on one study of each.

Engines of Ray and SLURM are in tests/paxtune/engines/, beside other tests of the same cluster.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paxtune.service.address import Service
from paxtune.service.coordinator import StudyCoordinator
from paxtune.service.registry import StudyRegistry
from paxtune.service.server import Server
from paxtune.service.study_location import ServiceLocation, StudyLocation, VizierLocation
from paxtune.storage.database import Database
from paxtune.storage.vizier_store import VizierStore
from paxtune.vizier_service.service import VizierService
from tests.conformance import engine_suite
from tests.conformance.engine_suite import Case, Life
from tests.factories import engine_searches
from tests.servers.processes import job

_MODULE = 'tests.factories.engine_searches'

Search = Callable[[int, float | None], str]


def here(name: str, folder: Path) -> Search:
    """Searches in this process."""
    engine = engine_searches.ENGINES[name](folder)
    trains = name in engine_searches.TRAINS
    return functools.partial(engine_searches.outcome, engine, folder, trains=trains)


def together(name: str, folder: Path) -> Search:
    """Searches in two processes; `stopped` where one of them is lost."""

    def search(trials: int, hours: float | None) -> str:
        first, other = job(_MODULE, name, str(folder), str(trials), str(hours or 0))
        if first.code or other.code:
            return 'stopped'
        return first.out.splitlines()[-1]

    return search


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[Service]:
    """Serves the study of a folder from this process."""
    with contextlib.closing(Database(folder / 'studies.db')) as database:
        registry = StudyRegistry(lambda name: StudyCoordinator(VizierStore(database, name), 10.0))
        with Server(registry, vizier_service=VizierService(database)) as server:
            (folder / engine_searches.ENDPOINT).write_text(f'127.0.0.1:{server.port}')
            yield engine_searches.service(folder)


@contextlib.contextmanager
def started(name: str, folder: Path) -> Iterator[Case]:
    """Starts what an engine needs."""
    with contextlib.ExitStack() as held:
        location: StudyLocation | None = None
        if name == 'vizier_storage' or 'remote' in name:
            served = held.enter_context(_served(folder))
            kind = VizierLocation if name == 'vizier_storage' else ServiceLocation
            location = kind(served)
        if 'multi_host' in name:
            yield Case(folder, together(name, folder), 'kill', True, 1e-3, location)
        elif name == 'packed':
            yield Case(folder, here(name, folder), trains=True, tolerance=1e-4)
        else:
            loss = 'kill' if name in ('workers', 'remote') else 'fail'
            yield Case(folder, here(name, folder), loss, location=location)


@pytest.fixture(scope='module')
def life(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Life]:
    with started(request.param, tmp_path_factory.mktemp(request.param)) as case:
        yield engine_suite.run(case)


each_check = pytest.mark.parametrize('check', engine_suite.ALL, ids=lambda check: check.__name__)


@pytest.mark.parametrize('life', ['in_process', 'threads'], indirect=True, scope='module')
@each_check
def test_an_engine_keeps_the_contract(life: Life, check: Callable[[Life], None]) -> None:
    check(life)


@pytest.mark.slow(reason='each search has several processes')
@pytest.mark.parametrize(
    'life',
    ['packed', 'vizier_storage', 'workers', 'remote', 'multi_host', 'remote_multi_host'],
    indirect=True,
    scope='module',
)
@each_check
def test_an_engine_that_compiles_or_has_processes_keeps_the_contract(
    life: Life, check: Callable[[Life], None]
) -> None:
    check(life)
