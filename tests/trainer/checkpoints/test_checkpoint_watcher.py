"""Jobs that follow a run: which checkpoints they see, and which are kept for them."""

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from tests.factories.tiny import experiment
from trainer.checkpoints.checkpoint_watcher import (
    GRACE,
    JOBS,
    PROGRESS,
    first_unprocessed,
    watch_checkpoints,
)
from trainer.checkpoints.end_marker import ended
from trainer.experiment import Experiment
from trainer.loop.report import Interrupted, Report
from trainer.loop.train_loop import run
from trainer.program.setup import compiled, localized
from trainer.runtime.signals import StopTrial
from trainer.state import TrainState
from trainer.symbolic.errors import UserError

STEPS = 6


def saving_each_step(**overrides: Any) -> Experiment:
    """Every step is saved, and only the newest is kept."""
    fields = {'train__checkpoints__every': 1, 'train__checkpoints__keep': 1, **overrides}
    return experiment(num_steps=STEPS, **fields)


def abstract_state(made: Experiment) -> TrainState:
    return compiled(localized(made))[0].abstract_state


def says(directory: Path, job: str, done: int, age: float | None) -> None:
    """Writes the state of a job of some seconds ago; None for one that has ended."""
    path = directory / JOBS / job / PROGRESS
    path.parent.mkdir(parents=True, exist_ok=True)
    alive = None if age is None else time.time() - age
    path.write_text(json.dumps({'done': done, 'alive': alive}))


def saved(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in (directory / 'checkpoints').iterdir())


def processed(made: Experiment, directory: Path, job: str = 'eval') -> list[int]:
    with watch_checkpoints(directory, job) as watcher:
        return [each.step for each in watcher.checkpoints(abstract_state(made))]


# --- What is kept ---


def test_the_earliest_step_of_live_jobs_is_kept(tmp_path: Path) -> None:
    assert first_unprocessed(tmp_path) is None
    says(tmp_path, 'eval', 4, 1.0)
    assert first_unprocessed(tmp_path) == 5
    says(tmp_path, 'decode', -1, GRACE / 2)
    assert first_unprocessed(tmp_path) == 0
    says(tmp_path, 'decode', -1, GRACE + 1)
    assert first_unprocessed(tmp_path) == 5
    says(tmp_path, 'eval', 4, None)
    assert first_unprocessed(tmp_path) is None


@pytest.mark.parametrize('text', ['', '[]', '{}', '{"done": 1}', '{"done": "x", "alive": 1e99}'])
def test_invalid_heartbeats_keep_nothing(text: str, tmp_path: Path) -> None:
    says(tmp_path, 'eval', 0, 0.0)
    (tmp_path / JOBS / 'eval' / PROGRESS).write_text(text)
    assert first_unprocessed(tmp_path) is None


@pytest.mark.parametrize(
    ('done', 'age', 'wanted'),
    [(3, 0.0, [4, 5, 6]), (-1, GRACE + 1, [6])],
)
def test_a_run_deletes_nothing_that_a_living_job_needs(
    done: int, age: float | None, wanted: list[int], tmp_path: Path
) -> None:
    says(tmp_path, 'eval', done, age)
    list(run(saving_each_step(), tmp_path))
    assert saved(tmp_path) == wanted


# --- What a job sees ---


@pytest.mark.pax(16, '--mode=eval')
def test_a_slow_job_sees_each_checkpoint_once_and_ends_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = saving_each_step()
    running: Generator[Report, None, None] = run(made, tmp_path)
    seen = []

    def wait(seconds: float) -> None:
        next(running, None)

    # Each wait, and each checkpoint that is treated, takes as long as two steps.
    with watch_checkpoints(tmp_path, 'eval', sleep=wait) as watcher:
        for restored in watcher.checkpoints(abstract_state(made)):
            assert int(restored.state.step) == restored.step
            seen.append(restored.step)
            next(running, None)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert capsys.readouterr().out.count('waiting for checkpoints in') == 1
    assert first_unprocessed(tmp_path) is None
    assert processed(made, tmp_path) == []


@pytest.mark.slow
def test_a_job_goes_on_where_one_before_it_failed(tmp_path: Path) -> None:
    made = saving_each_step()
    says(tmp_path, 'eval', -1, 0.0)
    list(run(made, tmp_path))

    def failing() -> None:
        with watch_checkpoints(tmp_path, 'eval') as watcher:
            for restored in watcher.checkpoints(abstract_state(made)):
                if restored.step == 3:
                    raise ValueError('broken')

    with pytest.raises(ValueError, match='broken'):
        failing()
    assert first_unprocessed(tmp_path) == 3  # It may be started again.
    assert processed(made, tmp_path) == [3, 4, 5, 6]
    assert processed(made, tmp_path, 'decode') == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_that_cannot_be_read_is_left_out_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = experiment(num_steps=4)
    list(run(made, tmp_path))
    for path in (tmp_path / 'checkpoints' / '2').rglob('*'):
        if path.is_file() and path.name != '_CHECKPOINT_METADATA':
            path.write_bytes(b'')
    assert processed(made, tmp_path) == [4]
    assert f'eval: checkpoint {tmp_path}/checkpoints/2 is left out: ' in capsys.readouterr().out


def test_a_run_that_began_anew_is_followed_from_its_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = experiment(num_steps=4)
    list(run(made, tmp_path))
    says(tmp_path, 'eval', 12, None)
    assert processed(made, tmp_path) == [2, 4]
    assert 'training went back to step 4' in capsys.readouterr().out


def test_there_is_one_job_of_each_name(tmp_path: Path) -> None:
    with (
        watch_checkpoints(tmp_path, 'eval'),
        watch_checkpoints(tmp_path, 'decode'),
        pytest.raises(UserError, match=r'jobs/eval: process \d+ is working there'),
        watch_checkpoints(tmp_path, 'eval'),
    ):
        pass


def test_a_job_gives_signs_of_life(tmp_path: Path) -> None:
    path = tmp_path / JOBS / 'eval' / PROGRESS
    with watch_checkpoints(tmp_path, 'eval', heartbeat_seconds=0.01):
        first = json.loads(path.read_text())['alive']
        for _ in range(500):
            if json.loads(path.read_text())['alive'] > first:
                break
            time.sleep(0.01)
        assert json.loads(path.read_text())['alive'] > first
    assert json.loads(path.read_text())['alive'] is None


@pytest.mark.slow
def test_a_job_follows_a_run_in_a_store(store: epath.Path) -> None:
    made = saving_each_step()
    with watch_checkpoints(store, 'eval') as watcher:
        assert first_unprocessed(store) == 0
        list(run(made, store))
        seen = [each.step for each in watcher.checkpoints(abstract_state(made))]
    assert seen == [1, 2, 3, 4, 5, 6]
    assert first_unprocessed(store) is None
    assert ended(store) == {'step': 6, 'reason': 'all steps are done'}


# --- When a run has ended ---


def test_a_run_says_when_it_has_ended_and_when_it_goes_on(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        list(run(experiment(num_steps=4), tmp_path, lambda: True))
    assert ended(tmp_path) is None
    list(run(experiment(num_steps=4), tmp_path))
    assert ended(tmp_path) == {'step': 4, 'reason': 'all steps are done'}
    running = run(experiment(num_steps=8), tmp_path)
    next(running)
    assert ended(tmp_path) is None
    running.close()
    assert ended(tmp_path) == {'step': 4, 'reason': 'the consumer of the reports stopped the run'}


@pytest.mark.pax(16, '**Defect**: the job')
def test_a_run_that_stops_for_good_says_so(tmp_path: Path) -> None:
    diverging = experiment(num_steps=20, task__learner__learning_rate=1e30)
    with pytest.raises(FloatingPointError):
        list(run(diverging, tmp_path / 'diverged'))
    mark = ended(tmp_path / 'diverged')
    assert mark is not None
    assert 'in a row, up to step 11, are not finite' in mark['reason']

    def stop() -> bool:
        raise StopTrial('good enough')

    with pytest.raises(StopTrial):
        list(run(experiment(), tmp_path / 'stopped', stop))
    assert ended(tmp_path / 'stopped') == {'step': 1, 'reason': 'good enough'}

    def fail() -> bool:
        raise ValueError('it may be put right')

    with pytest.raises(ValueError, match='put right'):
        list(run(experiment(), tmp_path / 'failed', fail))
    assert ended(tmp_path / 'failed') is None
