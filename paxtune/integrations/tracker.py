"""The base of callbacks that copy a study to a tracking tool."""

import contextlib
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import logging

from paxtune.running.callbacks import Callback
from paxtune.study.columns import reward_columns
from paxtune.study.record import Status

if TYPE_CHECKING:
    from paxtune.objectives.measurement import Measurement
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

_RETRY_SECONDS = 300.0


class Tracker(Callback):
    """Copies the trials of a study to a tracking tool, each to one run.

    A trial that resumes continues its run, as the tool itself resumes runs. An error of the tool
    is a warning, and ends neither the trial nor the search. The tool is asked again after some
    minutes; it lacks the events until then.
    """

    TOOL = ''
    """The name of the tool, for messages."""

    def __init__(self) -> None:
        self._runs: dict[int, Any] = {}  # The open runs, by trial.
        self._is_open = False
        self._failed: float | None = None  # The time of the last failure.

    @abstractmethod
    def _open(self, study: 'Study') -> None:
        """Connects to the tool."""

    @abstractmethod
    def _begin(self, study: 'Study', trial: 'Trial') -> Any:
        """Makes the run of a trial, or resumes it."""

    @abstractmethod
    def _log(self, run: Any, step: int, values: Mapping[str, float]) -> None:
        """Adds the values of a step to a run."""

    @abstractmethod
    def _show(self, run: Any, trial: 'Trial', facts: Mapping[str, Any]) -> None:
        """Gives a run the state of its trial, in `facts['state']`."""

    def _close(self, run: Any, trial: 'Trial') -> None:
        """Closes the run of a trial that does not run now."""

    def _stand(self, study: 'Study') -> None:
        """Shows the standing of the study after a trial has ended."""

    def _end(self, study: 'Study') -> None:
        """Closes the connection."""

    def on_study_start(self, study: 'Study') -> None:
        self._runs, self._is_open, self._failed = {}, False, None
        with self._warned():
            self._connect(study)

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        self._send(study, trial)

    def on_trial_pause(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self._send(study, trial, is_over=True)

    def on_trial_lost(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self._send(study, trial)

    def on_measurement(self, study: 'Study', trial: 'Trial', measurement: 'Measurement') -> None:
        self._send(study, trial, measurement)

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        self._send(study, trial, is_over=True)

    def on_study_end(self, study: 'Study') -> None:
        with self._warned():
            for number in list(self._runs):
                self._update(study, study.trial(number), is_over=True)
            if self._is_open:
                self._end(study)

    def _connect(self, study: 'Study') -> None:
        if not self._is_open:
            self._open(study)
            self._is_open = True

    def _send(
        self,
        study: 'Study',
        trial: 'Trial',
        measurement: 'Measurement | None' = None,
        is_over: bool = False,
    ) -> None:
        if self._failed is not None and time.monotonic() - self._failed < _RETRY_SECONDS:
            return
        with self._warned():
            self._connect(study)
            if trial.id not in self._runs:
                self._runs[trial.id] = self._begin(study, trial)
            if measurement is None:
                self._update(study, trial, is_over)
                if trial.is_terminal:
                    self._stand(study)
            else:
                values = {**measurement.metrics, **_named(study, measurement.rewards)}
                self._log(self._runs[trial.id], measurement.step, values)

    def _update(self, study: 'Study', trial: 'Trial', is_over: bool) -> None:
        run, final = self._runs[trial.id], _named(study, trial.rewards)
        if final:
            self._log(run, trial.measurements[-1].step if trial.measurements else 0, final)
        is_left = trial.status is Status.ACTIVE and not trial.record.holder
        state = 'interrupted' if is_left else str(trial.status)
        facts = {'state': state, 'attempt': trial.attempt, 'reason': trial.reason, **final}
        if trial.directory is not None:
            facts['directory'] = str(trial.directory)
        self._show(run, trial, {name: each for name, each in facts.items() if each is not None})
        if is_over:
            del self._runs[trial.id]
            self._close(run, trial)

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        """Turns the first of several errors into a warning."""
        try:
            yield
        except Exception as error:
            if self._failed is None:
                logging.warning(
                    '%s lacks a part of the study: %s: %s. The search goes on.',
                    self.TOOL,
                    type(error).__name__,
                    error,
                )
            self._failed = time.monotonic()
        else:
            self._failed = None


def _named(study: 'Study', rewards: Sequence[float]) -> dict[str, float]:
    """Names rewards: `reward`, or `reward/<label>` for several."""
    columns = reward_columns(study.rewards)
    names = ['reward'] if len(columns) == 1 else [f'reward/{name}' for name in columns]
    return dict(zip(names, rewards, strict=False))
