"""`--profile_steps`: which steps, and what is written where."""

from pathlib import Path
from typing import Any

import jax
import pytest

from tests.factories.tiny import experiment
from trainer import main
from trainer.loop.report import Interrupted
from trainer.loop.train_loop import run
from trainer.runtime.profiling import Profiler
from trainer.symbolic.errors import UserError


@pytest.mark.parametrize(
    'window', ['', '3', '3:', ':3', '0:3', '4:3', '-1:3', '1:2:3', 'a:b', '1.5:2']
)
def test_an_invalid_window_is_refused(window: str) -> None:
    with pytest.raises(UserError, match=f'^--profile_steps={window}: expected the first and the'):
        Profiler.parse(window)


def test_both_ends_are_in_a_window() -> None:
    profiler = Profiler.parse('3:5')
    assert [step for step in range(1, 8) if profiler.covers(step)] == [3, 4, 5]
    assert Profiler.parse('7:7').covers(7)


def profiles(directory: Path) -> list[Path]:
    """Where TensorBoard's profile plugin looks for runs."""
    return sorted(directory.glob('plugins/profile/*/*.xplane.pb'))


def steps_in(profile: Path) -> list[Any]:
    """The numbers of the steps that a profile shows."""
    data: Any = jax.profiler.ProfileData.from_file(str(profile))
    events = [event for plane in data.planes for line in plane.lines for event in line.events]
    return [dict(event.stats)['step_num'] for event in events if event.name == 'train']


@pytest.mark.pax('--jax_profiler_port', 'Profiler: steps, duration', 'Profiler, which does')
@pytest.mark.contract
def test_the_steps_of_a_window_are_profiled(tmp_path: Path) -> None:
    made = experiment(num_steps=5, train__evaluation__every=5, train__checkpoints__every=5)
    list(run(made, tmp_path, profiler=Profiler.parse('2:3')))
    (profile,) = profiles(tmp_path)
    assert steps_in(profile) == [2, 3]


def test_an_execution_of_several_steps_is_profiled_if_one_is_in_the_window(tmp_path: Path) -> None:
    intervals = {'evaluation__every': 6, 'checkpoints__every': 6, 'summary_interval_steps': 6}
    changes = {f'train__{name}': value for name, value in intervals.items()}
    made = experiment(num_steps=6, train__steps_per_execution=2, **changes)
    list(run(made, tmp_path, profiler=Profiler.parse('4:4')))
    (profile,) = profiles(tmp_path)
    assert steps_in(profile) == [3]


@pytest.mark.slow
def test_a_run_that_leaves_within_the_window_writes_what_there_is(tmp_path: Path) -> None:
    asked = iter([False, True])
    with pytest.raises(Interrupted):
        list(run(experiment(), tmp_path, lambda: next(asked), Profiler.parse('2:100')))
    assert len(profiles(tmp_path)) == 1
    # Nothing is left on: another profile can begin.
    list(run(experiment(), tmp_path / 'next', profiler=Profiler.parse('2:2')))
    assert len(profiles(tmp_path / 'next')) == 1


def test_a_window_that_the_run_does_not_reach_is_no_error(tmp_path: Path) -> None:
    list(run(experiment(num_steps=2), tmp_path, profiler=Profiler.parse('3:4')))
    assert profiles(tmp_path) == []


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--profile_steps=9:3'], '--profile_steps=9:3: expected the first and the last step'),
        (['--profile_steps=1:2', '--mode=eval'], '--profile_steps profiles training'),
    ],
)
def test_the_command_refuses_with_one_message(
    flags: list[str], message: str, tmp_path: Path
) -> None:
    given = ['--exp=lm.StdlibTunable', f'--job_log_dir={tmp_path}/run', *flags]
    with pytest.raises(UserError, match=f'^{message}') as raised:
        main.main(given)
    assert '\n' not in str(raised.value)


def test_a_window_after_the_last_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='--profile_steps: the last step of the run is 6'):
        main.train(experiment(), str(tmp_path / 'run'), [], Profiler.parse('7:9'))
    assert not (tmp_path / 'run').exists()
