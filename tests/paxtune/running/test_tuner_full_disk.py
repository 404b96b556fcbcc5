import errno
import threading
from pathlib import Path

import pyglove as pg
import pytest

from paxtune import tune
from paxtune.config.faults import Faults
from tests.disks import SmallDisk, small_disk


class Filling:
    """A function that finds the disk full, which is free again a little later."""

    def __init__(self, disk: SmallDisk) -> None:
        self._disk = disk
        self.calls = 0

    def __call__(self, values: object) -> float:
        self.calls += 1
        if self.calls == 1:
            self._disk.fill()
            threading.Timer(0.7, self._disk.free).start()
            raise OSError(errno.ENOSPC, 'No space left on device')
        return 1.0


@pytest.mark.slow
def test_a_trial_is_tried_again_once_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / 'disk', '4m') as disk:
        function = Filling(disk)
        with tune(
            function,
            space={'x': pg.floatv(0.0, 1.0)},
            num_trials=1,
            objective='minimize',
            job_log_dir=disk.path / 'job',
            faults=Faults(max_attempts=2),
        ) as study:
            (trial,) = study.trials
            assert (trial.state, trial.attempt, function.calls) == ('COMPLETED', 2, 2)
            lost = [event['detail'] for event in trial.history if event['event'] == 'failed']
            assert lost == ['the disk is full: OSError: [Errno 28] No space left on device']
