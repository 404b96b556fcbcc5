"""The tuner over a real study, with training that is only pretended."""

import io
import json
import math
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paxtune.objectives.measurement import Measurement
from paxtune.running.callbacks import Callback
from paxtune.running.experiment_runner import ExperimentRunner
from paxtune.running.trial_errors import StudyStoppedError
from paxtune.running.tuner import Paused, Tuner
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import open_study
from paxtune.study import stop_requests
from paxtune.study.record import TrialRecord
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.transitions import DetachedError, Transition
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import trial_directory
from paxtune.terminal.progress import Progress
from tests.factories import tunables
from trainer.loop.report import Interrupted, Report

Running = Generator[Report, None, None]


def measured(step: int, loss: float = 1.0, resumed_from: int = 0) -> Report:
    return Report(step, {'eval/log_pplx': loss}, None, resumed_from)


@pytest.fixture
def study(tmp_path: Path) -> Generator[Study, None, None]:
    tunable = tunables.Rates()
    tunable.rebind({'search.budget.trials': 2})
    with open_study(tmp_path, tunable, {'train_input': 'counting'}) as study:
        yield study


class StopsAll(Callback):
    """Requests the stop of each trial that reports."""

    def on_measurement(self, study: Study, trial: Trial, measurement: Measurement) -> None:
        stop_requests.request_stop(study.store, trial.id)


def tune(study: Study, train: Callable[..., Running], *callbacks: Callback, **fields: Any) -> str:
    """Runs the study with this training; returns what it showed."""
    out = io.StringIO()
    progress = Progress(console=Console(file=out, width=200))
    Tuner(study, ExperimentRunner(train=train), [progress, *callbacks], **fields).run()
    return out.getvalue()


def whole(*unused: Any) -> Running:
    for step in (2, 4, 6):
        yield measured(step)


def record(study: Study, trial: Trial) -> dict[str, Any]:
    path = trial_directory(study.directory, trial) / 'trial.json'
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize('end', ['complete', 'stop', 'fail'])
def test_a_kill_at_the_end_of_a_trial_leaves_no_record_behind(
    study: Study, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    def run(*unused: Any) -> Running:
        yield measured(2)
        yield measured(6, math.nan if end == 'fail' else 1.0)

    original = getattr(RunningTrial, end)

    def killed(trial: RunningTrial, *args: Any, **kwargs: Any) -> None:
        original(trial, *args, **kwargs)
        kill.setattr('paxtune.running.trial_json.TrialJson.write', lambda *args: None)
        raise KeyboardInterrupt

    with monkeypatch.context() as kill:
        kill.setattr(RunningTrial, end, killed)
        with pytest.raises(KeyboardInterrupt):
            tune(study, run, *([StopsAll()] if end == 'stop' else []))
    before = record(study, study.trials[0])
    assert before['state'] == 'active'
    assert '1 of 2 trials are done' in tune(study, whole)
    trial = study.trials[0]
    after = record(study, trial)
    assert after['state'] == trial.status
    assert after['reason'] == (trial.stop_reason or trial.reason)
    assert (after['reason'] is None) == (end == 'complete')
    assert after['rewards'] == list(trial.rewards)
    assert trial.completed is not None
    assert after['ended'] == trial.completed.isoformat()
    assert [m['step'] for m in after['measurements']] == [m.step for m in trial.measurements]
    changed = {'state', 'record', 'reason', 'stopped', 'rewards', 'metrics', 'seconds', 'devices'}
    changed |= {'ended', 'measurements', 'history', 'profile', 'goodput'}
    assert [event['event'] for event in after['history']] == ['claimed', 'ended']
    assert {k: v for k, v in before.items() if k not in changed} == {
        k: v for k, v in after.items() if k not in changed
    }


def test_a_last_save_that_fails_stops_the_study_and_ends_no_trial(study: Study) -> None:
    def run(*unused: Any) -> Running:
        try:
            yield measured(2)
        finally:
            raise OSError('the disk is gone')

    with pytest.raises(StudyStoppedError, match='trial 1 raised OSError: the disk is gone'):
        tune(study, run, StopsAll())
    (trial,) = study.trials
    assert (trial.state, trial.stop_reason) == ('ACTIVE', None)
    assert 'the disk is gone' in (trial_directory(study.directory, trial) / 'error.txt').read_text()


def test_a_process_that_has_lost_a_trial_leaves_its_record_alone(study: Study) -> None:
    class Loses(Callback):
        def on_measurement(self, study: Study, trial: Trial, measurement: Measurement) -> None:
            raise DetachedError('the lease was lost')

    with pytest.raises(DetachedError):
        tune(study, whole, Loses())
    (trial,) = study.trials
    assert len(trial.measurements) == 1
    assert record(study, trial)['measurements'] == []


@pytest.mark.contract
def test_a_signal_in_the_middle_of_a_trial_pauses_the_study(study: Study) -> None:
    signals: list[int] = []

    def run(_: Any, __: Path, should_interrupt: Callable[[], bool]) -> Running:
        yield measured(2)
        signals.append(2)
        assert should_interrupt()
        raise Interrupted(3)

    with pytest.raises(Paused, match='interrupted'):
        tune(study, run, should_interrupt=lambda: bool(signals))
    (trial,) = study.trials
    assert trial.status == record(study, trial)['state'] == 'active'


def test_a_signal_after_the_last_step_of_the_last_trial_pauses_nothing(study: Study) -> None:
    signals: list[int] = []

    def run(*unused: Any) -> Running:
        yield measured(6)
        if len(study.trials) == 2:
            signals.append(2)

    tune(study, run, should_interrupt=lambda: bool(signals))
    assert signals
    assert study.is_done


def test_a_resumed_trial_shows_the_measurement_of_the_step(study: Study) -> None:
    def interrupted(*unused: Any) -> Running:
        yield measured(2, 3.0)
        yield measured(4, 2.0)
        raise Interrupted(4)

    def resumed(*unused: Any) -> Running:
        for step, loss in ((2, 3.0), (4, 2.0), (6, 1.0)):
            yield measured(step, loss, resumed_from=2)

    signals = iter([False, True])
    with pytest.raises(Paused):
        tune(study, interrupted, should_interrupt=lambda: next(signals, True))
    assert tune(study, resumed).splitlines()[1:5] == [
        'trial 1: resumed from step 2',
        'trial 1: step 2 eval/log_pplx=3',
        'trial 1: step 4 eval/log_pplx=2',
        'trial 1: step 6 eval/log_pplx=1',
    ]


def test_an_error_of_the_budget_of_hours_stops_the_search_and_fails_no_trial(
    tmp_path: Path,
) -> None:
    class Lost(ExperimentRunner):
        """Loses its devices after the start of the trial."""

        @property
        def num_devices(self) -> int:
            if opened.trials[0].measurements:
                raise OSError('the devices are gone')
            return 1

    made = tunables.rates().rebind({'search.budget.hours': 1.0})
    with open_study(tmp_path, made) as opened:
        with pytest.raises(StudyStoppedError, match='the devices are gone'):
            Tuner(opened, Lost(train=whole)).run()
        (trial,) = opened.trials
        assert (trial.state, len(trial.measurements)) == ('ACTIVE', 1)


class InterruptedStore(LocalStore):
    """A store in which a signal arrives just after the first trial has ended."""

    is_interrupted = False

    def apply(self, id_: int, transition: Transition) -> TrialRecord:
        record = super().apply(id_, transition)
        if record.status.has_ended and not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        return record


def test_an_interrupt_during_the_commit_of_an_end_stays_an_interrupt(tmp_path: Path) -> None:
    store = InterruptedStore(Database(tmp_path / 'study.db'))
    with open_study(tmp_path, tunables.rates(num_trials=2), store=store) as study:
        with pytest.raises(KeyboardInterrupt):
            tune(study, whole)
        assert 'all trials are done' in tune(study, whole)
