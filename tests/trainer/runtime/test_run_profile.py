"""The wall clock of a run over several processes."""

import json
from pathlib import Path

import pytest

from trainer.runtime.metrics_file import METRICS
from trainer.runtime.run_profile import FILE, RunProfile, recorded
from trainer.runtime.wall_clock import LOST, OTHER, STEPS, WallClock, goodput


class Now:
    """A clock that passes by hand."""

    time = 0.0

    def __call__(self) -> float:
        return self.time

    def train(self, clock: WallClock, seconds: float) -> None:
        with clock.phase(STEPS):
            self.time += seconds


def test_steps_of_a_lost_process_since_its_last_checkpoint_are_lost(tmp_path: Path) -> None:
    now = Now()
    lost = WallClock(read=now)
    profile = RunProfile(tmp_path, lost)
    now.train(lost, 40)
    lost.keep()
    now.train(lost, 8)
    profile.write()
    written = json.loads((tmp_path / FILE).read_text())['written']
    summary = {'step': 9, 'time': written + 2, 'train/loss': 1.0}
    (tmp_path / METRICS).write_text(json.dumps(summary) + '\n')

    record = recorded(tmp_path)
    assert record is not None
    resumed = WallClock(read=now)
    resumed.before = record.resumed([tmp_path])
    profile = RunProfile(tmp_path, resumed)
    now.time += 10
    now.train(resumed, 40)
    assert profile.close().endswith('Goodput: 80%')
    ended = recorded(tmp_path)
    assert ended is not None
    assert ended.profile == pytest.approx({STEPS: 80, LOST: 10, OTHER: 10})
    assert json.loads((tmp_path / FILE).read_text())['goodput'] == pytest.approx(0.8)
    assert goodput(ended.profile) == pytest.approx(0.8)
    assert ended.resumed([tmp_path]) == ended.profile  # An orderly end loses nothing.


@pytest.mark.parametrize('content', ['', '[]', '{"profile": {"steps": []}}', '{"profile": 3}'])
def test_a_damaged_record_counts_for_nothing(content: str, tmp_path: Path) -> None:
    assert recorded(tmp_path) is None
    (tmp_path / FILE).write_text(content)
    assert recorded(tmp_path) is None
