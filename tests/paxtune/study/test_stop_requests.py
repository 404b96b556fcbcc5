"""Requests to stop a trial or to pause a study."""

from collections.abc import Callable
from typing import Any

import pytest

from paxtune.running.callbacks import Callback
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.tuner import Paused, Tuner
from paxtune.storage.open_study import open_study
from paxtune.study import stop_requests
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from tests.factories.function_studies import SPACE, run, search, two
from tests.factories.studies import states


class Asking(Callback):
    """Asks for something at the first measurement."""

    def __init__(self, ask: Callable[[Study, Trial], None]) -> None:
        self._ask: Callable[[Study, Trial], None] | None = ask

    def on_measurement(self, study: Study, trial: Trial, measurement: Any) -> None:
        if self._ask is not None:
            self._ask(study, trial)
            self._ask = None


def test_a_trial_can_be_asked_to_stop() -> None:
    study = run(
        two, [Asking(lambda study, trial: stop_requests.request_stop(study.store, trial.id))]
    )
    assert [trial.reward for trial in study.trials] == [2.0, 1.0, 1.0, 1.0]
    assert study.trials[0].stop_reason == 'stopped by request'


def test_a_study_can_be_asked_to_pause_and_goes_on_in_the_next_call() -> None:
    study = open_study(None, SPACE, search=search())
    asking = Asking(lambda study, trial: stop_requests.request_pause(study.store))
    with pytest.raises(Paused, match='studies stop'):
        Tuner(study, FunctionRunner(two), [asking]).run()
    assert states(study) == ['ACTIVE']
    Tuner(study, FunctionRunner(two), [asking]).run()
    assert [trial.reward for trial in study.trials] == [1.0] * 4
