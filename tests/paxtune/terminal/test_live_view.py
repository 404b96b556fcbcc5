"""`python -m paxtune.studies show --watch`."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paxtune.analysis.study_poller import StudyPoller, found_metrics, source_of
from paxtune.config.budget import Budget
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import open_study
from paxtune.study import stop_requests
from paxtune.study.transitions import WorkerLoss
from paxtune.study.trial_paths import trial_directory
from paxtune.terminal.live_view import watch
from tests.factories.studies import ask, finish, lose, rewrite, run
from tests.factories.toys import LOSS, search, toy
from tests.servers.processes import ROOT, environment
from tests.servers.terminal import final_lines
from trainer.runtime.interrupt import SignalEvent
from trainer.symbolic.errors import UserError

Acts = list[Callable[[], Any]]


@contextlib.contextmanager
def looking(directory: Path) -> Iterator[StudyPoller]:
    """A look at a study from outside, which cannot write."""
    with contextlib.closing(LocalStore(Database(directory / 'study.db', read_only=True))) as store:
        where = str(directory)
        yield StudyPoller(source_of(store, where), found_metrics(directory))


@pytest.fixture
def watched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Watches a study that does something between two looks; returns what was shown."""

    def show(acts: Acts, console: Console | None = None) -> str:
        left = iter(acts)

        class Acting(SignalEvent):
            def wait(self, seconds: float | None = None) -> bool:
                next(left)()
                return False

        database = Database(tmp_path / 'study.db', read_only=True)
        with contextlib.closing(LocalStore(database)) as store:
            watch(store, 'here', 1.0, Acting(), console)
        assert next(left, None) is None
        return capsys.readouterr().out

    return show


# --- Looking ---


def test_running_trials_are_shown_with_worker_and_attempt(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as study, looking(tmp_path) as looker:
        finish(ask(study))
        trial = ask(study)
        (row,) = looker.poll().running
        worker = study.store.worker
        assert (row.trial.id, row.trial.record.holder, row.trial.attempt) == (2, worker, 1)
        assert (row.step, row.rewards, row.event) == (0, (), 'claimed')
        claimed = row.since
        trial.report(10, {'loss': 0.5})
        (row,) = looker.poll().running
        assert (row.step, row.rewards, row.event) == (10, (0.5,), 'claimed')
        assert claimed is not None and row.since is not None and row.since > claimed
        assert looker.poll().running[0].since == row.since
        lose(trial, WorkerLoss('it crashed', counts=True, is_dead=True), 3)
        (row,) = looker.poll().running
        assert (row.trial.record.holder, row.trial.attempt, row.event) == ('', 2, 'failed')
        again = ask(study)
        again.add_event('resumed', 20)
        (row,) = looker.poll().running
        assert (row.trial.id, row.trial.record.holder, row.trial.attempt, row.step) == (
            2,
            worker,
            2,
            20,
        )
        again.report(30, {'loss': 0.25})
        again.complete()
        assert looker.poll().running == []


def test_steps_between_evaluations_are_read_from_the_metrics_of_a_trial(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as study, looking(tmp_path) as looker:
        trial = ask(study)
        directory = trial_directory(tmp_path, trial.view)
        directory.mkdir(parents=True)
        (directory / 'metrics.jsonl').write_text('{"step": 7, "train/loss": 2.5}\n{"step": 8')
        (row,) = looker.poll().running
        assert (row.step, row.training['train/loss'], row.curve) == (7, 2.5, (2.5,))
        assert row.state == 'running'
        trial.report(10, {'loss': 0.5})
        (row,) = looker.poll().running
        assert row.step == 10


def test_the_metrics_of_a_paused_trial_are_read_once(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as study, looking(tmp_path) as looker:
        trial = ask(study)
        directory = trial_directory(tmp_path, trial.view)
        directory.mkdir(parents=True)
        metrics = directory / 'metrics.jsonl'
        metrics.write_text('{"step": 7, "train/loss": 2.5}\n')
        looker.poll()
        trial.pause(7, 'at its milestone')
        metrics.write_text('{"step": 9, "train/loss": 1.5}\n')
        (row,) = looker.poll().running
        assert (row.state, row.step, row.training['train/loss']) == ('paused', 7, 2.5)
        study.open_trial(1).promote('it is among the best')
        (row,) = looker.poll().running
        assert (row.step, row.training['train/loss']) == (9, 1.5)


def test_the_overview_follows_the_study(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as study, looking(tmp_path) as looker:
        assert not looker.poll().counts
        for number in range(1, 6):
            assert not looker.poll().is_done
            finish(ask(study))
            seen = looker.poll()
            assert seen.counts == {'completed': number}
            assert study.best is not None
            assert seen.best is not None and seen.best.trial.id == study.best.id
        assert looker.poll().is_done
        study.delete_trial(5)
        seen = looker.poll()
        assert (seen.counts, seen.is_done) == ({'completed': 4}, False)


def test_ended_trials_are_read_once(tmp_path: Path) -> None:
    asked: list[list[int]] = []

    class Counting(LocalStore):
        def contents(self, ids: Collection[int] | None = None) -> list[tuple[int, bytes]]:
            asked.append(sorted(ids or ()))
            return super().contents(ids)

    with open_study(tmp_path, toy()) as study:
        finish(ask(study))
        trial = ask(study)
        database = Database(tmp_path / 'study.db', read_only=True)
        with contextlib.closing(Counting(database)) as store:
            looker = StudyPoller(source_of(store, 'here'))
            looker.poll()
            looker.poll()
            trial.set_metadata({'a': 'b'})
            looker.poll()
    assert asked == [[1, 2], [], [2]]


def test_a_trial_without_a_history_has_no_last_event(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as study, looking(tmp_path) as looker:
        rewrite(study, ask(study).id, history=())
        (row,) = looker.poll().running
        assert row.since is None and row.event == ''


# --- Showing ---


def test_lines_where_something_has_changed(tmp_path: Path, watched: Callable[..., str]) -> None:
    with open_study(tmp_path, toy(search=search(budget=Budget(2)))) as study:
        worker = study.store.worker
        acts: Acts = [
            lambda: finish(ask(study)),
            lambda: None,
            lambda: ask(study).report(10, {'loss': 0.000125}),
            lambda: study.open_trial(2).complete(),
        ]
        out = watched(acts)
    headlines = [line.partition(' ')[2] for line in out.splitlines() if ' here: ' in line]
    assert headlines[0] == 'here: 0 of 2 trials: no trial yet; no worker has a trial'
    assert headlines[1].startswith('here: 1 of 2 trials: 1 completed; best: trial 1, reward=0.00')
    assert '1 completed, 1 active' in headlines[2]
    assert headlines[3].endswith('the study is done')
    assert len(headlines) == 4
    row = next(line.split() for line in out.splitlines() if worker in line)
    assert row[:6] == ['2', worker, '1', '10', '0.000125', 'claimed']
    assert '\x1b' not in out


def test_a_terminal_shows_a_screen_and_keeps_a_line_for_each_trial(
    tmp_path: Path, watched: Callable[..., str]
) -> None:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, force_interactive=True, width=80, height=24, highlight=False
    )
    with open_study(tmp_path, toy(search=search(budget=Budget(2)))) as study:
        acts: Acts = [
            lambda: finish(ask(study)),
            lambda: ask(study).report(10, {'loss': 0.5}),
            lambda: None,
            lambda: study.open_trial(2).complete(),
        ]
        assert watched(acts, console) == ''
        loss = study.trials[0].reward
    shown = out.getvalue()
    assert '0 of 2 trials' in shown and '1 completed, 1 active' in shown
    row = next(line.split() for line in shown.splitlines() if ' 0.5 ' in line)
    assert row[:3] == ['2', '10', '0.5']
    kept = final_lines(shown)
    assert kept == [
        f'trial 1: completed, reward={loss:.5g}',
        'trial 2: completed, reward=0.5',
        f'2 of 2 trials: 2 completed; best: trial 1, reward={loss:.6g}',
    ]


def test_a_pause_and_a_front_are_shown(tmp_path: Path, watched: Callable[..., str]) -> None:
    both = Objectives([LOSS, MetricReward('maximize', 'accuracy')])
    with open_study(tmp_path, toy(search=search(budget=Budget(2), objective=both))) as study:
        finish(ask(study))
        acts: Acts = [
            lambda: stop_requests.request_pause(study.store),
            lambda: finish(ask(study)),
        ]
        out = watched(acts)
    assert '1 of 2 trials: 1 completed; 1 that no other is better than; a pause was' in out
    assert 'best' not in out


def test_a_study_that_was_not_written_yet(tmp_path: Path) -> None:
    Database(tmp_path / 'study.db').close()
    with looking(tmp_path) as looker, pytest.raises(UserError, match='nothing was written yet'):
        looker.poll()


# --- As a person runs it ---


def command_of(directory: Path) -> list[str]:
    # Its experiment is of classes that nothing here knows.
    where = ['show', str(directory), '--watch', '--interval=0.1']
    return [sys.executable, '-m', 'paxtune.studies', *where]


@pytest.mark.slow
def test_control_c_ends_it_and_the_study_goes_on(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as study:
        trial = ask(study)
        with subprocess.Popen(
            command_of(tmp_path), cwd=ROOT, env=environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                assert '0 of 5 trials: 1 active' in process.stdout.readline()
                trial.report(10, {'loss': 0.5})
                while '0.5' not in process.stdout.readline():
                    assert process.poll() is None
                process.send_signal(signal.SIGINT)
                _, messages = process.communicate(timeout=60)
            finally:
                process.kill()
        assert (process.returncode, messages) == (0, '')
        trial.complete()
        assert len(run(study)) == 5


@pytest.mark.slow
def test_a_closed_pipe_ends_the_view(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as study:
        ask(study)
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, 'w') as nowhere:
        done = subprocess.run(
            command_of(tmp_path), cwd=ROOT, env=environment(), check=False, text=True,
            stdout=nowhere, stderr=subprocess.PIPE, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, '')
