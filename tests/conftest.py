"""Fixtures and hooks of all tests."""

import collections
import contextlib
import gc
import os
import shutil
import signal
import uuid
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import hypothesis
import pytest
from etils import epath

from tests import durations
from tests.servers.gcs import Emulator, EmulatorMissingError
from trainer.runtime.directory import job_path

# The same examples every time, and no deadline: how long an example takes depends on the machine.
# `.ci/full` loads the second profile.
for _profile, _examples in {'quarter': 25, 'full': 100}.items():
    hypothesis.settings.register_profile(
        _profile,
        deadline=None,
        derandomize=True,
        max_examples=_examples,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile('quarter')


# Bytes above which what earlier runs compiled is thrown away.
_COMPILED_BYTES = 2 * 2**30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption('--shard', metavar='I/N', help='run part I, from 1, of N parts of the suite')
    parser.addoption(
        '--record-durations',
        choices=('fast', 'slow'),
        help='write the seconds of each file to tests/durations.json, as those of this suite',
    )


def pytest_configure(config: pytest.Config) -> None:
    """Shares compiled programs between tests, also with processes and later runs.

    Compiling is most of what tests do. They do it without most of XLA's optimizations; commands
    that are run as processes compile as users' do (`tests.servers.processes`).
    """
    # A shell ignores it for what runs in the background; what tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, 'workerinput'):
        compiled = config.rootpath / '.xla_cache'
        if sum(file.stat().st_size for file in compiled.glob('*')) > _COMPILED_BYTES:
            shutil.rmtree(compiled)
        # JAX reads them when it is imported.
        os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(compiled))
        os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
        os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] = 'true'
        if suite := config.getoption('--record-durations'):
            config.pluginmanager.register(_Recorder(suite))


class _Recorder:
    """Adds up the seconds of tests, in the process that hears from all others."""

    def __init__(self, suite: str) -> None:
        self._suite = suite
        self._tests: dict[str, float] = collections.defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        durations.write(self._suite, self._tests)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # Marks before `-m` selects, divides after it.
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    _mark_first_cases(items)
    yield
    _divide(config, items)


def _mark_first_cases(items: Sequence[pytest.Item]) -> None:
    """Applies `fast(n)` and `sentinel(n)` to the first n cases of a test alone."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for item in items:
        for name in ('fast', 'sentinel'):
            marker = item.get_closest_marker(name)
            if marker is not None:
                function = item.nodeid.partition('[')[0]
                counts[function, name] += 1
                if counts[function, name] > (*marker.args, 1)[0]:
                    item.own_markers.remove(marker)
                    item.add_marker('slow')


def _divide(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the part that `--shard` names, and starts the longest files first."""
    by_file: dict[str, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        by_file[item.nodeid.partition('::')[0]].append(item)
    known = durations.read()
    files = durations.longest_first([*by_file], known['slow'])
    if shard := config.getoption('--shard'):
        part, _, count = shard.partition('/')
        files = durations.shards(files, known['slow'], int(count))[int(part) - 1]
    kept = [item for file in files for item in by_file[file]]
    others = set(items) - set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in others])
    items[:] = kept


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from walking through all that was imported, again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, 'wasxfail'):
        _fail_where_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_where_skipped(report)
    return report


@pytest.fixture(scope='session', autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps the tokens of services that tests start away from those of the user."""
    os.environ['XDG_STATE_HOME'] = str(tmp_path_factory.mktemp('state'))


@pytest.fixture(scope='session')
def _emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with contextlib.ExitStack() as held:
        try:
            directory = tmp_path_factory.mktemp('gcs')
            emulator = held.enter_context(Emulator.started(directory))
        except EmulatorMissingError as error:
            pytest.skip(f'no Google Cloud Storage: {error}')
        # For the whole session: gcsfs and tensorstore read them once.
        patch = held.enter_context(pytest.MonkeyPatch.context())
        for name, value in emulator.environment.items():
            patch.setenv(name, value)
        yield emulator


@pytest.fixture
def store(_emulator: Emulator) -> epath.Path:
    """A directory in Google Cloud Storage, where nothing is yet."""
    return epath.Path(job_path(f'{_emulator.bucket}/{uuid.uuid4().hex}'))


def _fail_where_skipped(report: Any) -> None:
    """Fails skipped tests in CI, where no other run would cover them."""
    if report.skipped and os.environ.get('CI') == 'true':
        report.outcome = 'failed'
        report.longrepr = f'skipped in CI: {report.longrepr}'


@pytest.fixture
def no_programs() -> None:
    """Drops the programs that earlier tests of this process have compiled."""
    # Imported here: most tests of commands have no use for JAX.
    from trainer.program.program import PROGRAMS

    PROGRAMS.clear()


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """Counts what XLA compiles."""
    # Imported here: most tests of commands have no use for JAX.
    import jax

    counted: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == '/jax/core/compile/backend_compile_duration':
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield counted
    jax.monitoring.unregister_event_duration_listener(listen)
