"""The network and the checks of files of `benchmarks/chaos.py`, and the moments of its faults."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.chaos import plan_of
from benchmarks.chaotic import faults, files
from benchmarks.chaotic.proxy import Proxy, Trouble
from paxtune.storage.open_study import load_study
from paxtune.study.trial_paths import attempt_directory
from tests.factories.studies import study_of_all_kinds
from trainer.runtime.directory import lock
from trainer.runtime.metrics_file import METRICS


class Echo:
    """A service that returns what it reads, and keeps it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.port: int = self.listener.getsockname()[1]
        self.read = b''
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(100):
                self.read += data
                connection.sendall(data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    service = Echo()
    with service.listener:
        yield service


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    made = Proxy(echo.port)
    with socket.create_connection(('127.0.0.1', made.port)):  # Open when the proxy stops.
        yield made
        made.stop()


def connected(proxy: Proxy) -> socket.socket:
    client = socket.create_connection(('127.0.0.1', proxy.port), timeout=5)
    assert asked(client, b'first') == b'first'
    client.settimeout(0.3)
    return client


def asked(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return client.recv(100)


def test_a_slow_network_delays(proxy: Proxy) -> None:
    with connected(proxy) as client:
        client.settimeout(5)
        proxy.disturb('slow', 0.1)
        start = time.monotonic()
        assert asked(client, b'slow') == b'slow'
        assert time.monotonic() - start >= 0.2
        proxy.heal('slow')
        assert asked(client, b'healed') == b'healed'


def test_a_cut_network_breaks_connections_and_refuses_others(proxy: Proxy) -> None:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(connected(proxy))
        proxy.disturb('cut')
        with pytest.raises(ConnectionResetError):
            client.recv(100)
        # The reset may come while it connects.
        with pytest.raises(ConnectionResetError):
            other = socket.create_connection(('127.0.0.1', proxy.port), timeout=5)
            stack.enter_context(other).recv(100)
    proxy.heal('cut')
    connected(proxy).close()


@pytest.mark.parametrize(
    ('lost', 'arrived'), [('no replies', b'firstlost'), ('no requests', b'first')]
)
def test_the_network_loses_what_one_side_sends(
    proxy: Proxy, echo: Echo, lost: Trouble, arrived: bytes
) -> None:
    with connected(proxy) as client:
        proxy.disturb(lost)
        with pytest.raises(TimeoutError):
            asked(client, b'lost')
        assert echo.read == arrived
        proxy.heal(lost)
        with pytest.raises(ConnectionResetError):
            client.recv(100)


def test_half_open_connections_are_silent_while_others_work(proxy: Proxy, echo: Echo) -> None:
    with connected(proxy) as client:
        proxy.disturb('half-open')
        with pytest.raises(TimeoutError):
            asked(client, b'lost')
        connected(proxy).close()
        assert echo.read == b'firstfirst'
        proxy.heal('half-open')
        with pytest.raises(ConnectionResetError):
            client.recv(100)


def test_the_seed_determines_faults_and_moments() -> None:
    kinds = dict.fromkeys(['a full disk', *faults.NETWORK], lambda scene, rng: '')
    plan = plan_of('sqlite', quick=False, seed=3)
    one, other = faults.schedule(plan, kinds), faults.schedule(plan, kinds)
    assert one == other
    assert {each.kinds[0] for each in one if len(each.kinds) == 1} == set(kinds)
    assert sum(len(each.kinds) == 2 for each in one) == plan.num_pairs
    assert one != faults.schedule(plan_of('sqlite', quick=False, seed=4), kinds)


def test_checks_of_files_find_what_is_wrong(tmp_path: Path) -> None:
    study_of_all_kinds(tmp_path).close()
    with load_study(tmp_path) as study:
        trial = next(each for each in study.trials if each.status == 'completed')
        directory = Path(str(attempt_directory(tmp_path, trial)))
        directory.mkdir(parents=True)
        steps = [each.step for each in trial.measurements]
        assert len(steps) > 1

        def found(*records: dict[str, float]) -> list[str]:
            text = ''.join(json.dumps(each) + '\n' for each in records)
            (directory / METRICS).write_text(text)
            return [text for each in files.check_files(study) for text in each.wrong]

        well = [{'step': step, 'loss': 0.0} for step in steps]
        assert found(*well, {'step': steps[-1], 'accuracy': 0.0}) == []
        (doubled,) = found(*well, well[-1])
        assert 'has the steps' in doubled
        (unsorted,) = found(*reversed(well))
        assert 'has the steps' in unsorted
        (missing,) = found(*well[:-1])
        assert missing.endswith(f'has no steps [{steps[-1]}]')
        (directory / '.metrics.jsonl.1.partial').touch()
        (left,) = found(*well)
        assert left.endswith('.partial is left')
        held = lock(directory / 'lock')
        assert any(each.endswith('is held') for each in found(*well))
        os.close(held)


def test_two_writers_in_one_attempt_are_seen(tmp_path: Path) -> None:
    events = tmp_path / 'trials' / '0001' / 'summaries' / 'events'
    events.parent.mkdir(parents=True)
    script = f'import time; file = open({str(events)!r}, "a"); print(flush=True); time.sleep(60)'
    flags = ['paxtune.worker', f'--job_log_dir={tmp_path}']
    writers = files.Writers(tmp_path)
    writers.start()
    with contextlib.ExitStack() as stack:
        for is_second in (False, True):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, '-c', script, *flags], stdout=subprocess.PIPE)
            )
            stack.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline()
            looks = writers.looks
            while writers.looks == looks:
                time.sleep(0.05)
            assert bool(writers.wrong) == is_second
    writers.stop()
    assert writers.wrong[0].endswith('write in ' + str(events.parents[1]))
