"""The base of callbacks that copy a study to a tracking tool."""

import contextlib
import dataclasses
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


@dataclasses.dataclass
class Tracked:
    """A run of a tracking tool, and what it has of its trial.

    Attributes:
        run: the run; None where it is closed.
        step: the last step that it has; -1 before the first one.
        state: the state that it has; '' before the first one.
    """

    run: Any
    step: int = -1
    state: str = ''


class Tracker(Callback):
    """Copies the trials of a study to a tracking tool, each to one run.

    The study knows all, so any event sends all that a run lacks of its trial. An error of the tool
    is a warning, and ends neither the trial nor the search. All that was missed follows once the
    tool answers again, at the end of the search, or in the next call.

    Attributes:
        TOOL: the name of the tool, for messages.
    """

    TOOL = ''

    def __init__(self) -> None:
        self._tracked: dict[int, Tracked] = {}
        self._is_open = False
        self._failed: float | None = None  # The time of the last failure.

    @abstractmethod
    def _open(self, study: 'Study') -> None:
        """Connects to the tool, and fills `_tracked` with the runs that it has."""

    @abstractmethod
    def _begin(self, study: 'Study', trial: 'Trial') -> Tracked:
        """Makes the run of a trial, or finds the one that an earlier process made."""

    @abstractmethod
    def _log(self, tracked: Tracked, step: int, values: Mapping[str, float]) -> None:
        """Adds the values of a step to a run, which notes the step."""

    @abstractmethod
    def _show(self, tracked: Tracked, trial: 'Trial', facts: Mapping[str, Any]) -> None:
        """Gives a run the state of its trial, in `facts['state']`."""

    def _end(self, study: 'Study', is_done: bool) -> None:
        """Closes the connection."""

    def on_study_start(self, study: 'Study') -> None:
        self._send(study)

    def on_trial_start(self, study: 'Study', trial: 'Trial') -> None:
        self._send(study, trial)

    def on_trial_resume(self, study: 'Study', trial: 'Trial', step: int) -> None:
        self._send(study, trial)

    def on_trial_pause(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self._send(study, trial)

    def on_trial_lost(self, study: 'Study', trial: 'Trial', reason: str) -> None:
        self._send(study, trial)

    def on_measurement(self, study: 'Study', trial: 'Trial', measurement: 'Measurement') -> None:
        self._send(study, trial)

    def on_trial_end(self, study: 'Study', trial: 'Trial') -> None:
        self._send(study, trial)

    def on_study_end(self, study: 'Study') -> None:
        try:
            trials, is_done = _unowned(study), study.is_done
        except Exception as error:  # The search has ended with an error of its own.
            logging.info('%s: the study cannot be read at its end: %s', self.TOOL, error)
            return
        with self._warned():
            self._update(study, trials)
            self._end(study, is_done)

    def _send(self, study: 'Study', trial: 'Trial | None' = None) -> None:
        if self._failed is not None and time.monotonic() - self._failed < _RETRY_SECONDS:
            return
        # After a failure, other trials may lack something, too.
        trials = [trial] if trial is not None else []
        if trial is None or self._failed is not None:
            trials += _unowned(study)
        with self._warned():
            self._update(study, trials)

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        """Turns the first of several errors into a warning."""
        try:
            yield
        except Exception as error:
            if self._failed is None:
                logging.warning(
                    '%s does not have the latest of the study: %s: %s. The search goes on, and '
                    'sends it later; the same call again does so, too.',
                    self.TOOL,
                    type(error).__name__,
                    error,
                )
            self._failed, self._is_open = time.monotonic(), False
        else:
            self._failed = None

    def _update(self, study: 'Study', trials: 'Sequence[Trial]') -> None:
        if not self._is_open:
            self._open(study)
            self._is_open = True
        for trial in trials:
            self._track(study, trial)

    def _track(self, study: 'Study', trial: 'Trial') -> None:
        state, tracked = _state(trial), self._tracked.get(trial.id)
        if tracked is not None and tracked.state == state:
            measured = [] if trial.is_terminal else trial.measurements
            if all(each.step <= tracked.step for each in measured):
                return
        if tracked is None or tracked.run is None:
            tracked = self._tracked[trial.id] = self._begin(study, trial)
        names = reward_names(study)
        for each in trial.measurements:
            if each.step > tracked.step:
                rewards = dict(zip(names, each.rewards, strict=False))
                self._log(tracked, each.step, {**each.metrics, **rewards})
                tracked.step = each.step
        if tracked.state != state:
            final = dict(zip(names, trial.rewards, strict=False))
            if final:
                self._log(tracked, max(tracked.step, 0), final)
            facts = {'state': state, 'attempt': trial.attempt, 'reason': trial.reason, **final}
            if trial.directory is not None:
                facts['directory'] = str(trial.directory)
            known = {name: value for name, value in facts.items() if value is not None}
            self._show(tracked, trial, known)
            tracked.state = state


def reward_names(study: 'Study') -> list[str]:
    """Names the rewards of a study: `reward`, or `reward/<label>` for several."""
    columns = reward_columns(study.rewards)
    return ['reward'] if len(columns) == 1 else [f'reward/{name}' for name in columns]


def _state(trial: 'Trial') -> str:
    is_left = trial.status is Status.ACTIVE and not trial.record.holder
    return 'interrupted' if is_left else str(trial.status)


def _unowned(study: 'Study') -> 'list[Trial]':
    """Lists trials that ran here, and that no process runs now: the others report themselves."""
    return [
        trial
        for trial in study.trials
        if not trial.lineage.is_imported and trial.history
        if trial.status is not Status.ACTIVE or not trial.record.holder
    ]
