"""Callbacks are called for each event; their errors end the search."""

from typing import Any

import pytest

from paxtune.config.budget import Budget
from paxtune.running.callbacks import Callback
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.tuner import Tuner
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from tests.factories.function_studies import SPACE, run, search, two
from tests.factories.studies import states


class Heard(Callback):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_study_start(self, study: Study) -> None:
        self.events.append('study')

    def on_trial_start(self, study: Study, trial: Trial) -> None:
        self.events.append(f'start {trial.id}')

    def on_measurement(self, study: Study, trial: Trial, measurement: Any) -> None:
        self.events.append(f'{measurement.step}: {measurement.reward}')

    def on_trial_end(self, study: Study, trial: Trial) -> None:
        self.events.append(trial.state)

    def on_study_end(self, study: Study) -> None:
        self.events.append('end')


@pytest.mark.pax('XManager artifacts and')
def test_callbacks_hear_of_everything_in_order() -> None:
    heard = Heard()
    run(two, [heard], budget=Budget(1))
    assert heard.events == ['study', 'start 1', '1: 2.0', '2: 1.0', 'COMPLETED', 'end']


def test_an_error_of_a_callback_ends_the_search_and_loses_nothing() -> None:
    class Raising(Heard):
        def on_trial_end(self, study: Study, trial: Trial) -> None:
            raise RuntimeError('no network')

    study, heard = open_study(None, SPACE, search=search()), Raising()
    with pytest.raises(RuntimeError, match='no network'):
        Tuner(study, FunctionRunner(two), [heard]).run()
    assert states(study) == ['COMPLETED']
    assert heard.events[-1] == 'end'


@pytest.mark.parametrize('method', ['on_trial_start', 'on_measurement', 'on_trial_end'])
def test_whatever_a_callback_raises_is_not_the_trials(method: str) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError('no network')

    callback = type('Broken', (Callback,), {method: broken})()
    study = open_study(None, SPACE, search=search())
    with pytest.raises(RuntimeError, match='no network'):
        Tuner(study, FunctionRunner(two), [callback]).run()
    assert [trial.is_failed for trial in study.trials] == [False]
    Tuner(study, FunctionRunner(two)).run()
    assert states(study) == ['COMPLETED'] * 4
