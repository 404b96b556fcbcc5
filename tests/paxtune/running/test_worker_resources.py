"""Resources of workers in their logs, and in the summary of a study."""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import paxtune
from paxtune.reports.study_tables import summary
from paxtune.reports.tables import to_text
from paxtune.running.json_logs import JsonLines
from paxtune.running.worker_resources import _LOG, ResourceLog
from paxtune.storage.open_study import load_study
from paxtune.study.worker_logs import LOGS, lines_about, worker_rows
from tests.factories.function_studies import PARALLEL, process_of


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """The log of a worker, into which this process logs."""
    path = tmp_path / 'logs' / 'host-1.jsonl'
    handler = JsonLines(path, {'worker': 'w1', 'trial': 3})
    _LOG.addHandler(handler)
    level = _LOG.level
    _LOG.setLevel('INFO')
    yield path
    _LOG.setLevel(level)
    _LOG.removeHandler(handler)


def test_a_worker_logs_its_cpu_and_memory(file: Path) -> None:
    with ResourceLog('w1'):
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
    first, last = lines_of(file)
    for line in (first, last):
        assert line['message'] == 'resources' and line['worker'] == 'w1'
        assert 2**20 < line['memory_bytes'] <= line['peak_memory_bytes'] < 2**40
        assert 'device_bytes' not in line
    assert first['cpu_percent'] > 0 and last['cpu_percent'] > 10


def test_lines_repeat_and_stand_in_the_log_of_no_trial(file: Path, tmp_path: Path) -> None:
    none: Any = None
    with ResourceLog('w1', seconds=0.0) as log:
        log.on_measurement(none, none, none)
        log.on_measurement(none, none, none)
    with ResourceLog('w1') as rare:
        rare.on_measurement(none, none, none)
    assert len(lines_of(file)) == 4 + 2
    assert {line['trial'] for line in lines_of(file)} == {None}
    assert lines_about(tmp_path, 3) == []


def test_devices_are_asked_once_a_trial_took_a_step(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = [{'bytes_in_use': 5, 'peak_bytes_in_use': 7}, {'bytes_in_use': 1}, None]
    devices = [SimpleNamespace(memory_stats=lambda own=own: own) for own in stats]
    monkeypatch.setitem(sys.modules, 'jax', SimpleNamespace(local_devices=lambda: devices))
    log = ResourceLog('w1')
    assert 'device_bytes' not in log._sample()
    none: Any = None
    log.on_step(none, none, 1, {})
    found = log._sample()
    assert (found['device_bytes'], found['peak_device_bytes']) == (6, 7)
    devices[:] = devices[2:]
    assert 'device_bytes' not in log._sample()


def test_the_last_line_of_each_worker_counts(tmp_path: Path) -> None:
    def line(worker: Any, minute: int, **fields: Any) -> str:
        known = {'worker': worker, 'time': f'2026-01-01T00:{minute:02}', 'message': 'resources'}
        return json.dumps(known | fields)

    logs = tmp_path / LOGS
    logs.mkdir()
    lines = [line('a', 1, cpu_percent=1), line('a', 2, cpu_percent=99)]
    (logs / 'a.jsonl').write_text('\n'.join(lines))
    (logs / 'b.jsonl').write_text(line('b', 3, memory_bytes=2**30) + '\n{"message": "resources')
    number, negative = line('c', 4, cpu_percent='9'), line('c', 4, cpu_percent=-1)
    names = line(1, 1), line('\x1b[2J', 4), line('c' * 201, 4)
    for damage in ('[1]', '{}', '[' * 10**5, number, negative, *names):
        (logs / f'damaged-{len(list(logs.iterdir()))}.jsonl').write_text(damage)
    assert worker_rows(tmp_path) == [
        {'worker': 'b', 'time': '2026-01-01T00:03', 'memory_bytes': 2**30},
        {'worker': 'a', 'time': '2026-01-01T00:02', 'cpu_percent': 99},
    ]
    assert worker_rows(None) == []
    assert lines_about(tmp_path, 1) == []


def test_only_files_of_the_study_are_read(tmp_path: Path) -> None:
    known = {'worker': 'a', 'time': '2026-01-01T00:00', 'message': 'resources'}
    other, logs = tmp_path / 'other', tmp_path / 'study' / LOGS
    other.mkdir()
    (other / 'a.jsonl').write_text(json.dumps(known))
    logs.mkdir(parents=True)
    (logs / 'a.jsonl').symlink_to(other / 'a.jsonl')
    (logs / 'folder.jsonl').mkdir()
    os.mkfifo(logs / 'pipe.jsonl')
    assert worker_rows(tmp_path / 'study') == []
    assert lines_about(tmp_path / 'study', 1) == []
    linked = tmp_path / 'linked'
    linked.mkdir()
    (linked / LOGS).symlink_to(other)
    assert worker_rows(linked) == []


@pytest.mark.slow
def test_show_has_the_resources_of_workers(tmp_path: Path) -> None:
    paxtune.tune(process_of, job_log_dir=tmp_path, workers=2, **PARALLEL).close()
    with load_study(tmp_path) as study:
        page = summary(study)
    rows = page.data['workers']
    assert len(rows) == 2
    assert all(row['cpu_percent'] >= 0 and row['memory_bytes'] > 2**20 for row in rows)
    (table,) = [each for each in page.tables if each.title == 'Workers']
    assert ' GiB' in to_text(table) and ' %' in to_text(table)
