import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import search, tune
from paxtune.running.trial_errors import StudyStoppedError
from paxtune.running.tuner import prepare_to_run
from paxtune.storage.open_study import load_study
from tests.factories.studies import states
from tools.servers.disks import SmallDisk, small_disk

FIELDS: dict[str, Any] = {
    'space': {'x': pg.floatv(0.0, 1.0)},
    'num_trials': 3,
    'objective': 'minimize',
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / 'disk', '4m') as disk:
        yield disk


@pytest.mark.parametrize('is_named', [True, False])
def test_a_full_disk_stops_the_study_at_once_and_its_trial_goes_on_when_there_is_room(
    disk: SmallDisk, is_named: bool
) -> None:
    calls = []

    def filling(x: float) -> float:
        calls.append(x)
        if len(calls) == 2:
            disk.fill()
            if is_named:  # Else the study's own files do not fit.
                raise OSError(errno.ENOSPC, 'No space left on device')
        return x

    directory = disk.path / 'job'
    with pytest.raises(StudyStoppedError) as raised:
        tune(filling, job_log_dir=directory, **FIELDS)
    message = str(raised.value)
    assert message.startswith(f'no space is left on the disk of {directory} (')
    assert 'Make room, and resume' in message
    disk.free()
    with tune(filling, job_log_dir=directory, **FIELDS) as study:
        assert states(study) == ['COMPLETED'] * 3
        assert {trial.attempt for trial in study.trials} == {1}
    assert calls[1] == calls[2]


def test_a_full_disk_delays_the_records_of_trials_that_others_ended(disk: SmallDisk) -> None:
    with tune(lambda x: x, job_log_dir=disk.path / 'job', **FIELDS) as study:
        record = next((disk.path / 'job').rglob('trial.json'))
        ended = json.loads(record.read_text())
        record.write_text(json.dumps(ended | {'state': 'active'}))
        disk.fill()
        prepare_to_run(study)
        assert json.loads(record.read_text())['state'] == 'active'
        disk.free()
        prepare_to_run(study)
        assert json.loads(record.read_text())['state'] == ended['state']


@pytest.mark.slow
@pytest.mark.parametrize('flags', [[], ['--workers=2']])
def test_a_full_disk_ends_a_search_with_one_message(
    disk: SmallDisk, capfd: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    directory = disk.path / 'job'
    # Workers end where less than 1 MiB is free.
    disk.fill(but=700 * 1024 + (2**20 if flags else 0))
    command = ['--exp=tests.factories.tunables.Rates', f'--job_log_dir={directory}', *flags]
    assert search.main(command) == 1
    out, err = capfd.readouterr()
    assert err == ''
    assert out.count('no space is left') == 1
    stopped, _, wall_clock = out.splitlines()[-3:]
    assert f'Stopped: no space is left on the disk of {directory} (' in stopped
    assert wall_clock.startswith('Wall clock of this search')
    assert 'To resume:\n  python -m paxtune.search --exp=' in out
    disk.free()
    assert search.main(command) == 0
    with load_study(directory) as study:
        assert states(study) == ['COMPLETED'] * 4
