import json
import logging
from pathlib import Path
from typing import Any

from paxtune.running.json_logs import JsonLines
from tools.servers.disks import small_disk


def logged(path: Path, message: str, *args: Any, **fields: Any) -> None:
    handler = JsonLines(path, {'study': 'a', 'worker': 'b'})
    record = logging.LogRecord('paxtune', logging.INFO, '', 0, message, args, None)
    record.fields = fields
    handler.emit(record)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_line_holds_the_context_the_message_and_its_fields(tmp_path: Path) -> None:
    path = tmp_path / 'logs' / 'host-1.jsonl'
    logged(path, 'step %d', 8, step=8, metrics={'eval/loss': 0.1 + 0.2})
    logged(path, 'ended')
    first, second = map(json.loads, lines(path))
    assert first.pop('time') <= second.pop('time')
    known = {'level': 'INFO', 'study': 'a', 'worker': 'b'}
    fields = {'step': 8, 'metrics': {'eval/loss': 0.1 + 0.2}}
    assert first == {**known, 'message': 'step 8', **fields}
    assert second == {**known, 'message': 'ended'}


def test_a_line_cut_off_by_a_full_disk_damages_no_other(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(logging, 'raiseExceptions', False)
    with small_disk(tmp_path / 'disk') as disk:
        path = disk.path / 'host-1.jsonl'
        logged(path, 'before')
        disk.fill()
        # One page is the log's already.
        logged(path, 'x' * 8192)
        disk.free()
        logged(path, 'after')
        first, cut_off, last = lines(path)
    assert 0 < len(cut_off) < 8192
    assert [json.loads(line)['message'] for line in (first, last)] == ['before', 'after']
