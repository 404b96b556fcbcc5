from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paxtune.running.callbacks import Callback
from paxtune.study.record import Status
from paxtune.study.trial_paths import attempt_directory

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial


class Watcher:
    """Polls a study, and reports changes to callbacks."""

    def __init__(self, study: 'Study', callbacks: Sequence[Callback]) -> None:
        """Begins to watch an open study. Trials that have ended before are not reported."""
        self._study, self._callbacks = study, callbacks
        trials = study.trials
        self._ended = {trial.id for trial in trials if trial.is_terminal}
        self._began: set[int] = set()
        self._measured = {trial.id: len(trial.measurements) for trial in trials}
        self._steps: dict[int, Mapping[str, float]] = {}
        self._happened = {trial.id: len(trial.history) for trial in trials}

    def look(self) -> None:
        """Reports the changes since the last poll."""
        for trial in self._study.trials:
            if trial.id not in self._ended and (trial.history or trial.is_terminal):
                self._report(trial)

    def _report(self, trial: 'Trial') -> None:
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
        if trial.status is Status.ACTIVE:
            self._report_step(trial)
        if trial.is_terminal:
            self._ended.add(trial.id)
            for callback in self._callbacks:
                callback.on_trial_end(study, trial)

    def _report_step(self, trial: 'Trial') -> None:
        # Imported here: a study of functions needs no trainer.
        from trainer.runtime.metrics_file import METRICS, last_training_record

        if self._study.space.is_tunable:
            path = attempt_directory(self._study.directory, trial) / METRICS
            record = last_training_record(path)
            if record is not None and record != self._steps.get(trial.id):
                self._steps[trial.id] = record
                for callback in self._callbacks:
                    callback.on_step(self._study, trial, record['step'], record)

    def _report_events(self, trial: 'Trial') -> None:
        events = trial.history
        for event in events[self._happened.get(trial.id, 0) :]:
            for callback in self._callbacks:
                if event['event'] == 'resumed':
                    callback.on_trial_resume(self._study, trial, int(event['step']))
                elif event['event'] == 'paused':
                    callback.on_trial_pause(self._study, trial, event['detail'])
                elif event['event'] in ('lost', 'failed'):
                    callback.on_trial_lost(self._study, trial, event['detail'])
        self._happened[trial.id] = len(events)
