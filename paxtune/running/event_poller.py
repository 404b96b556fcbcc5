from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paxtune.analysis.study_poller import StudyPoller
from paxtune.running.callbacks import Callback
from paxtune.study.record import Status

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial


class Watcher:
    """Polls a study, and reports changes to callbacks."""

    def __init__(self, study: 'Study', callbacks: Sequence[Callback]) -> None:
        """Begins to watch an open study. Trials that have ended before are not reported."""
        self._study, self._callbacks = study, callbacks
        self._poller = StudyPoller.of(study)
        trials = self._poller.poll().trials
        self._began: set[int] = set()
        self._measured = {trial.id: len(trial.measurements) for trial in trials}
        self._steps: dict[int, Mapping[str, float]] = {}
        self._happened = {trial.id: len(trial.record.history) for trial in trials}

    def look(self) -> None:
        """Reports the changes since the last poll."""
        state = self._poller.poll()
        training = {each.trial.id: each.training for each in state.running}
        begun = [each for each in state.trials if each.record.history and not each.is_terminal]
        for trial in sorted([*state.ended, *begun], key=lambda trial: trial.id):
            self._report(trial, training.get(trial.id, {}))

    def _report(self, trial: 'Trial', training: Mapping[str, float]) -> None:
        study = self._study
        if trial.id not in self._began:
            self._began.add(trial.id)
            for callback in self._callbacks:
                callback.on_trial_start(study, trial)
        self._report_events(trial)
        for measurement in trial.measurements[self._measured.get(trial.id, 0) :]:
            for callback in self._callbacks:
                callback.on_measurement(study, trial, measurement)
        self._measured[trial.id] = len(trial.measurements)
        if trial.status is Status.ACTIVE and training and training != self._steps.get(trial.id):
            self._steps[trial.id] = training
            for callback in self._callbacks:
                callback.on_step(study, trial, int(training['step']), training)
        if trial.is_terminal:
            for callback in self._callbacks:
                callback.on_trial_end(study, trial)

    def _report_events(self, trial: 'Trial') -> None:
        events = trial.record.history
        for event in events[self._happened.get(trial.id, 0) :]:
            for callback in self._callbacks:
                if event.event == 'resumed' and event.step is not None:
                    callback.on_trial_resume(self._study, trial, event.step)
                elif event.event == 'paused':
                    callback.on_trial_pause(self._study, trial, event.detail)
                elif event.event in ('lost', 'failed'):
                    callback.on_trial_lost(self._study, trial, event.detail)
        self._happened[trial.id] = len(events)
