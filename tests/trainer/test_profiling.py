from pathlib import Path

import pytest

from tests.trainer.tiny import experiment
from trainer.errors import UserError
from trainer.loop import run
from trainer.profiling import Profiler


def test_the_steps_of_the_window_are_written_for_tensorboard(tmp_path: Path) -> None:
    list(run(experiment(num_steps=4), tmp_path, profiler=Profiler.parse('2:3')))
    (trace,) = tmp_path.glob('plugins/profile/*/*.xplane.pb')
    assert trace.stat().st_size > 1000


def test_a_run_that_ends_in_the_window_ends_the_profile(tmp_path: Path) -> None:
    running = run(experiment(num_steps=6), tmp_path, profiler=Profiler(1, 6))
    next(running)
    running.close()
    assert list(tmp_path.glob('plugins/profile/*/*.xplane.pb'))


@pytest.mark.parametrize('window', ['', '3', '3:2', '0:2', 'a:b', '1:2:3', '-1:2'])
def test_what_is_no_window_is_refused(window: str) -> None:
    with pytest.raises(UserError, match=r'--profile_steps=.*expected the first and the last step'):
        Profiler.parse(window)
