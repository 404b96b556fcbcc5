"""Trials of a function, several at a time: in threads, in workers, in processes that join."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import RandomSearch
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.engines.base import Job
from paxtune.engines.in_process import InProcess
from paxtune.engines.threads import Threads, run_in_threads
from paxtune.engines.workers import Workers
from paxtune.objectives.rewards import MetricReward
from paxtune.running.callbacks import Callback
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.tuner import STOP_REQUESTED, Paused, Tuner
from paxtune.storage.open_study import open_study
from paxtune.study import stop_requests
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from tests.factories.function_studies import OBJECTIVE, PARALLEL, SPACE, process_of, search
from tests.factories.tunables import Rates
from tests.servers.processes import ROOT, environment
from trainer.program.packing.lanes import Lanes
from trainer.runtime import directory as directories
from trainer.symbolic.errors import UserError


def decisions(trials: list[Trial]) -> list[Any]:
    return [trial.decisions for trial in trials]


# --- Threads ---


def test_a_function_that_cannot_be_imported_runs_in_threads() -> None:
    together = threading.Barrier(4, timeout=30.0)

    def waits_for_others(x: float) -> float:
        together.wait()
        return x

    ended: list[int] = []
    with tune(
        waits_for_others,
        workers=4,
        callbacks=[lambda study, trial: ended.append(trial.id)],
        **PARALLEL,
    ) as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 4
        assert sorted(ended) == [1, 2, 3, 4]
        with tune(lambda x: x, workers=1, **PARALLEL) as alone:
            assert decisions(alone.trials) == decisions(study.trials)


def test_an_error_of_a_callback_ends_the_study_for_all_callbacks() -> None:
    class Broken(Callback):
        def on_trial_end(self, study: Study, trial: Trial) -> None:
            raise RuntimeError('the callback is broken')

    class Closed(Callback):
        is_closed = False

        def on_study_end(self, study: Study) -> None:
            self.is_closed = True

    closed = Closed()
    with pytest.raises(RuntimeError, match='the callback is broken'):
        tune(lambda x: x, engine=Threads(2), callbacks=[closed, Broken()], **PARALLEL)
    assert closed.is_closed


def test_an_interrupt_of_threads_returns_their_trials() -> None:
    asked = threading.Event()

    def interrupts(x: float, trial: Trial) -> float:
        if trial.id == 2:
            asked.set()
        return x

    with tune(interrupts, engine=Threads(2), should_interrupt=asked.is_set, **PARALLEL) as study:
        assert study.interrupted
        assert {trial.state for trial in study.trials} == {'COMPLETED'}
        assert 2 <= len(study.trials) < 4
        with tune(lambda x: x, study=study) as whole:
            assert [trial.state for trial in whole.trials] == ['COMPLETED'] * 4


def test_a_request_to_stop_is_for_threads_that_begin_later_too() -> None:
    study = open_study(None, SPACE, search=search(objective=OBJECTIVE))
    begun: list[int] = []

    def asks(values: Any, trial: Trial) -> Iterator[float]:
        begun.append(trial.id)
        if begun == [1]:
            stop_requests.request_pause(study.store)
        yield 1.0
        yield 2.0

    lanes = Lanes(3, 'measured')  # One after another.
    job = Job(study, FunctionRunner(asks), (), lambda: False)

    def work(index: int, should_interrupt: Callable[[], bool]) -> None:
        with lanes.lane(index) as lane:
            Tuner(study, job.runner, (), should_interrupt, lane).join()

    with pytest.raises(Paused, match=STOP_REQUESTED):
        run_in_threads(job, lanes.count, work)
    assert begun == [1] and [trial.state for trial in study.trials] == ['ACTIVE']


def test_a_request_to_stop_is_the_reason_of_all_threads() -> None:
    study = open_study(None, SPACE, search=search(objective=OBJECTIVE))

    def asks(values: Any, trial: Trial) -> Iterator[float]:
        if threading.current_thread().name.endswith('_1'):
            stop_requests.request_pause(study.store)
        else:
            time.sleep(0.6)  # The other thread leaves first.
        yield 1.0
        yield 2.0

    with pytest.raises(Paused, match=STOP_REQUESTED):
        Threads(2).run(Job(study, FunctionRunner(asks), (), lambda: False))


# --- Workers ---


def test_the_number_of_workers_fits_the_workload() -> None:
    with pytest.raises(UserError, match='at least 1'):
        tune(process_of, workers=0, **PARALLEL)
    with pytest.raises(UserError, match='Threads run functions'):
        tune(Rates(), engine=Threads(2), job_log_dir='unused')
    with pytest.raises(UserError, match=r'workers=2 and engine=InProcess.*: give one'):
        tune(process_of, workers=2, engine=InProcess(), **PARALLEL)


# --- Several processes on one directory ---


def opened(directory: Path | None) -> Study:
    space = pg.Dict(x=pg.floatv(0.0, 1.0))
    how = search(objective=OBJECTIVE, budget=Budget(5), algorithm=RandomSearch())
    return open_study(directory, space, search=how)


def test_a_study_hands_out_several_trials_each_once() -> None:
    with opened(None) as study:
        trials = study.ask(3)
        assert [trial.id for trial in trials] == [1, 2, 3]
        assert len({str(trial.decisions) for trial in trials}) == 3
        fourth = study.ask()
        assert fourth is not None and fourth.id == 4
        assert [trial.id for trial in study.ask(3)] == [5]
        assert study.ask() is None and not study.is_done
        for trial in trials:
            study.tell(trial, 0.5)
        assert study.best is not None


def test_studies_of_one_directory_hand_out_each_trial_once(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        assert [trial.id for trial in first.ask(2)] == [1, 2]
        with opened(tmp_path) as second:
            trials = second.ask(10)
            assert [trial.id for trial in trials] == [3, 4, 5]
            assert second.ask() is None
            for trial in trials[:2]:
                second.tell(trial, 0.5)
        # Only the third of these is without a process now.
        again = first.ask(10)
        assert [(trial.id, trial.resumed) for trial in again] == [(5, True)]
    assert not list(tmp_path.glob('study.db-*'))


def test_functions_share_a_directory_and_experiments_do_not(tmp_path: Path) -> None:
    directory = tmp_path / 'study'
    with directories.locked(directory, is_shared=True):
        tune(lambda x: x, job_log_dir=directory, **PARALLEL).close()
        with pytest.raises(UserError, match='is working there'):
            tune(process_of, engine=Workers(1), job_log_dir=directory, **PARALLEL)
    with (
        directories.locked(directory),
        pytest.raises(UserError, match='is working there'),
    ):
        tune(lambda x: x, job_log_dir=directory, **PARALLEL)


@pytest.mark.slow
def test_a_process_that_joins_takes_the_trial_of_a_killed_one(tmp_path: Path) -> None:
    blocked = subprocess.Popen(
        [sys.executable, '-m', 'tests.factories.blocking_search', str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
    )
    with blocked:
        assert blocked.stdout is not None
        first = float(blocked.stdout.readline())
        seen: list[float] = []

        def kills_at_the_third(x: float) -> float:
            seen.append(x)
            if len(seen) == 3:
                blocked.kill()
            return x

        with tune(kills_at_the_third, job_log_dir=tmp_path, **PARALLEL) as study:
            assert seen[3] == first
            assert seen[:3] == [trial.decisions['x'] for trial in study.trials[1:]]
            assert [each['event'] for each in study.trials[0].history].count('lost') == 1


_BOTH = threading.Barrier(2, timeout=30)


class Meeting(MetricReward):
    """A reward that two threads compute at the same time."""

    def compute(self, metrics: Mapping[str, float]) -> float:
        _BOTH.wait()
        return super().compute(metrics)


def test_rewards_of_two_threads_are_computed_at_the_same_time(tmp_path: Path) -> None:
    with tune(
        lambda x: float(x),
        space={'x': pg.oneof([1, 2])},
        objective=Meeting('minimize', 'objective'),
        engine=Threads(2),
        job_log_dir=tmp_path,
    ) as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 2
