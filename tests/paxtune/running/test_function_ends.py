"""Every end of a function is an end of its trial, and of nothing else."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import Faults, MedianStopping
from paxtune.api import tune
from paxtune.config.error_patterns import ErrorPattern
from paxtune.engines.threads import Threads
from paxtune.running.trial_errors import BadRewardError, StudyStoppedError
from paxtune.storage.open_study import load_study
from tests.factories.function_studies import PARALLEL
from tests.factories.studies import states
from trainer.symbolic.errors import UserError

ENDS = [
    SystemExit(0),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    BaseException('another'),
    StopIteration(1),
]
ALONE = {**PARALLEL, 'callbacks': []}


@pytest.mark.parametrize('end', ENDS, ids=lambda end: type(end).__name__)
@pytest.mark.parametrize('engine', [None, Threads(2)], ids=['alone', 'threads'])
def test_an_end_of_a_function_is_that_of_its_trial(end: BaseException, engine: Any) -> None:
    def ends(x: float, trial: Any) -> float:
        if trial.id == 2:
            raise end
        return x

    def ends_later(x: float, trial: Any) -> Iterator[float]:
        yield x
        if trial.id == 2:
            raise end

    for function in (ends, ends_later):
        with tune(function, engine=engine, **ALONE) as study:
            assert sorted(states(study)) == ['COMPLETED'] * 3 + ['INFEASIBLE']
            trial = study.trial(2)
            assert trial.is_failed
            if not isinstance(end, Exception):
                assert str(trial.reason).startswith(type(end).__name__)
                assert f'{Path(__file__).name}:' in str(trial.reason)


class Mute(ValueError):
    """Its text and its form for people cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError('no text')

    __repr__ = __str__


@pytest.mark.parametrize('engine', [None, Threads(2)], ids=['alone', 'threads'])
def test_a_failure_without_a_text_is_that_of_its_trial(engine: Any, tmp_path: Path) -> None:
    def fails(x: float, trial: Any) -> Any:
        if trial.id == 2:
            raise Mute
        if trial.id == 3:
            return {'objective': Mute()}
        return Mute() if trial.id == 4 else x

    with tune(fails, engine=engine, job_log_dir=tmp_path, **ALONE) as study:
        reasons = [str(trial.reason) for trial in study.trials]
    assert reasons[1].startswith('Mute: its message cannot be made (RuntimeError)')
    assert reasons[2].startswith('the metric objective is a Mute, and must be a number')
    assert 'metrics by name, not a Mute' in reasons[3]


def test_an_exit_is_matched_by_the_patterns_of_errors() -> None:
    def exits(x: float) -> float:
        sys.exit(3)

    faults = Faults(errors_to_stop_study=[ErrorPattern('SystemExit')])
    with pytest.raises(StudyStoppedError, match='raised SystemExit: 3'):
        tune(exits, faults=faults, **ALONE)


def test_an_end_while_decisions_are_found_is_refused() -> None:
    def exits() -> float:
        sys.exit(int(pg.oneof([0, 1])))

    with pytest.raises(UserError, match=r'its decisions, ended with SystemExit: 0 \(.*\.py:'):
        tune(exits, objective='minimize')


def swallowing(x: float, trial: Any) -> float:
    try:
        if trial.id == 2:
            signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        pass
    return x


def exiting(x: float, trial: Any) -> float:
    try:
        if trial.id == 2:
            signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        sys.exit(1)
    return x


def raising(x: float, trial: Any) -> float:
    try:
        return exiting(x, trial)
    except SystemExit as error:
        raise RuntimeError('aborted') from error


@pytest.mark.parametrize('function', [swallowing, exiting, raising])
def test_ctrl_c_interrupts_a_search_whatever_the_function_makes_of_it(
    function: Any, tmp_path: Path
) -> None:
    ended = 2 if function is swallowing else 1
    with tune(function, **ALONE) as study:
        assert study.interrupted
        assert states(study)[:ended] == ['COMPLETED'] * ended
        assert 'COMPLETED' not in states(study)[ended:]
        assert 'INFEASIBLE' not in states(study)
    with pytest.raises(KeyboardInterrupt) as raised:
        tune(function, job_log_dir=tmp_path, **ALONE)
    assert raised.type is KeyboardInterrupt
    with load_study(tmp_path) as study:
        assert states(study).count('COMPLETED') == ended
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_function_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    home = Path.cwd()
    idle = threading.Event()

    def changes(x: float, trial: Any) -> Iterator[float]:
        assert Path.cwd() == home
        os.chdir(trial.directory)
        Path('written').write_text(str(x))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Thread(target=idle.wait).start()
        yield x
        yield x

    relative = os.path.relpath(tmp_path / 'study')
    try:
        with tune(changes, job_log_dir=relative, **ALONE) as study:
            assert states(study) == ['COMPLETED'] * 4
            for trial in study.trials:
                assert trial.directory is not None
                assert sorted(os.listdir(trial.directory))[-2:] == ['trial.json', 'written']
    finally:
        idle.set()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert Path.cwd() == home


def test_a_generator_is_closed_at_the_end_of_its_trial(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[int] = []

    def stopped(x: float, trial: Any) -> Iterator[float]:
        try:
            for step in range(1, 4):
                yield trial.id * step
        finally:
            closed.append(trial.id)
            if trial.id == 4:
                sys.exit(1)

    with tune(stopped, scheduler=MedianStopping(min_trials=1), **ALONE) as study:
        assert closed == [1, 2, 3, 4]
        assert study.trial(4).stop_reason is not None
    assert 'Trial 4: its function raised as it was closed: SystemExit: 1' in caplog.text


@pytest.mark.filterwarnings('ignore::RuntimeWarning', 'ignore::DeprecationWarning')
def test_a_forked_process_that_returns_goes_no_further() -> None:
    parent, calls = os.getpid(), []

    def forks(x: float) -> float:
        if child := os.fork():
            os.waitpid(child, 0)
            calls.append(os.getpid())
            return x
        sys.exit(3)

    with tune(forks, **ALONE) as study:
        assert states(study) == ['COMPLETED'] * 4
    assert calls == [parent] * 4


# --- Whatever ends a study in memory carries the study ---


def exits_at_three(study: Any, trial: Any) -> None:
    if trial.id == 3:
        sys.exit(5)


def fails_at_three(study: Any, trial: Any) -> None:
    if trial.id == 3:
        raise RuntimeError('the callback is broken')


@pytest.mark.parametrize(
    ('callback', 'error'), [(exits_at_three, SystemExit), (fails_at_three, RuntimeError)]
)
@pytest.mark.parametrize('engine', [None, Threads(1)], ids=['alone', 'threads'])
def test_an_error_of_a_callback_carries_the_study(callback: Any, error: Any, engine: Any) -> None:
    with pytest.raises(error) as raised:
        tune(lambda x: x, engine=engine, **{**ALONE, 'callbacks': [callback]})
    assert 'study=error.study' in raised.value.__notes__[0]
    with tune(lambda x: x, study=raised.value.study) as study:
        assert states(study) == ['COMPLETED'] * 4


def test_a_trial_without_the_metric_of_others_is_infeasible() -> None:
    def forgets(x: float, trial: Any) -> dict[str, float]:
        return {'objective' if trial.id != 3 else 'loss': x}

    with tune(forgets, **ALONE) as study:
        assert states(study) == ['COMPLETED', 'COMPLETED', 'INFEASIBLE', 'COMPLETED']
        assert "'objective' is not measured. Measured: loss" in str(study.trial(3).reason)
    with pytest.raises(BadRewardError) as raised:
        tune(lambda x: {'loss': x}, **ALONE)
    assert states(raised.value.study) == ['ACTIVE']  # type: ignore[attr-defined]
