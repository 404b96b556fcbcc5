"""The tuner: asks the study for trials, trains them, and tells it what came of them."""

import gc
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from paxtune.console import Progress
from paxtune.records import TrialRecord
from paxtune.rewards import NonFiniteReward
from paxtune.study import Study
from paxtune.trial import Trial
from trainer.directory import trial_directory_name, write_text
from trainer.errors import UserError
from trainer.loop import Interrupted, Measurement, NonFiniteLossError, run


class OutOfTime(Exception):
    """The study's hours are used up; the running trial is in a checkpoint."""


class BadReward(UserError):
    """The reward cannot be made of what is measured: no trial of this study can have one."""


class Tuner:
    """Runs the trials of a study in this process, one after another.

    A failure inside a trial (an exception, a loss that is not finite, no memory) makes that trial
    infeasible, and the study goes on.

    Attributes:
        study: where trials come from.
        progress: shows them.
    """

    def __init__(
        self,
        study: Study,
        progress: Progress,
        data: dict[str, str],
        should_interrupt: Callable[[], bool] = lambda: False,
        max_hours: float | None = None,
    ):
        """Makes a tuner.

        Args:
            study: an open study.
            progress: what shows the trials.
            data: fingerprints of the data, written to each trial's record.
            should_interrupt: asked after every training step.
            max_hours: stop after so long; the trial that runs then goes on in the next call.
        """
        self.study, self.progress, self._data = study, progress, data
        self._interrupted = should_interrupt
        self._deadline = None if max_hours is None else time.monotonic() + max_hours * 3600

    def run(self) -> None:
        """Runs trials until the study has all of its own.

        Raises:
            Interrupted: `should_interrupt` said so.
            OutOfTime: `max_hours` have passed.
            BadReward: the reward needs a metric that is not measured.
        """
        done = [trial for trial in self.study.trials if trial.is_terminal]
        self.progress.already_done(len(done), self._best())
        while not self._should_pause() and (trial := self.study.suggest()) is not None:
            try:
                self._run_trial(trial)
            except Interrupted:
                if self._interrupted():
                    raise
            # What a trial leaves on the device must be gone before the next one begins.
            gc.collect()
        if self._interrupted():
            raise Interrupted(0)
        if self._out_of_time():
            raise OutOfTime

    def _run_trial(self, trial: Trial) -> None:
        directory = trial_directory(self.study.directory, trial)
        directory.mkdir(parents=True, exist_ok=True)
        record = TrialRecord(directory, trial, self._data)
        self.progress.start(trial.id, trial.decisions)
        try:
            self._train(trial, directory, record)
        except (Interrupted, BadReward):
            raise
        except (NonFiniteLossError, NonFiniteReward) as error:
            trial.fail(str(error))
        except Exception as error:
            # Whatever a trial raises is that trial's. The traceback is kept beside it.
            write_text(directory / 'error.txt', traceback.format_exc())
            trial.fail(_first_line(error))
        finally:
            record.write(trial)
        self.progress.end(trial.id, *outcome(trial), self._best())

    def _train(self, trial: Trial, directory: Path, record: TrialRecord) -> None:
        experiment = trial.materialize()
        for measurement in run(experiment, directory, self._should_pause):
            if measurement.resumed_from and not record.is_resumed:
                record.resumed(measurement.resumed_from)
                self.progress.resume(trial.id, measurement.resumed_from)
            self._report(trial, measurement)
            record.write(trial)
            is_last = measurement.step == experiment.train.num_train_steps
            reason = None if is_last else self.study.should_stop(trial)
            if reason is not None:
                trial.stop(reason)
                return
        trial.complete()

    def _report(self, trial: Trial, measurement: Measurement) -> None:
        try:
            trial.report(measurement.step, measurement.metrics)
        except UserError as error:
            raise BadReward(str(error)) from error
        self.progress.measure(trial.id, measurement.step, trial.measurements[-1].reward)

    def _should_pause(self) -> bool:
        return self._interrupted() or self._out_of_time()

    def _out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _best(self) -> tuple[int, float] | None:
        best = self.study.best
        return None if best is None or best.reward is None else (best.id, best.reward)


def trial_directory(study_directory: Path, trial: Trial) -> Path:
    """Where a trial's checkpoints, metrics and records are."""
    return study_directory / 'trials' / trial_directory_name(trial.id, trial.decisions)


def outcome(trial: Trial) -> tuple[str, str]:
    """How a trial ended, in one word, and why."""
    if trial.stop_reason is not None:
        return 'stopped', trial.stop_reason
    return trial.state.lower(), trial.infeasible_reason or ''


def _first_line(error: Exception) -> str:
    text = str(error).strip().split('\n')[0]
    return f'{type(error).__name__}: {text}' if text else type(error).__name__
