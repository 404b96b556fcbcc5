"""The tuner: asks the study for trials, trains them, and tells it what came of them."""

import contextlib
import gc
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from paxtune.console import Progress
from paxtune.records import TrialRecord, settle
from paxtune.rewards import NonFiniteRewardError
from paxtune.study import Study
from paxtune.trial import Trial
from trainer.directory import trial_directory_name, write_text
from trainer.errors import UserError
from trainer.loop import Interrupted, Measurement, NonFiniteLossError, run


class Paused(Exception):
    """The study is not finished, and goes on in the next call. The message says why.

    The trial that was running is in a checkpoint.
    """


class BadRewardError(UserError):
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
        should_interrupt: Callable[[], bool] = lambda: False,
        max_hours: float | None = None,
    ):
        """Makes a tuner.

        Args:
            study: an open study.
            progress: what shows the trials.
            should_interrupt: asked after every training step.
            max_hours: stop after so long; the trial that runs then goes on in the next call.
        """
        self.study, self.progress = study, progress
        self._interrupted = should_interrupt
        self._deadline = None if max_hours is None else time.monotonic() + max_hours * 3600

    def run(self) -> None:
        """Runs trials until the study has all of its own.

        Raises:
            Paused: `should_interrupt` said so, or `max_hours` have passed.
            BadRewardError: the reward needs a metric that is not measured.
        """
        self.study.finish_stopping()
        done = [trial for trial in self.study.trials if trial.is_terminal]
        for trial in done:
            settle(trial_directory(self.study.directory, trial), trial)
        self.progress.already_done(len(done), self._best())
        while not self._should_pause() and (next_trial := self.study.suggest()) is not None:
            self._run_trial(next_trial)
            # What a trial leaves on the device must be gone before the next one begins.
            gc.collect()
        if not self.study.is_done:
            raise Paused('interrupted' if self._interrupted() else 'the hours are used up')

    def _run_trial(self, trial: Trial) -> None:
        directory = trial_directory(self.study.directory, trial)
        directory.mkdir(parents=True, exist_ok=True)
        record = TrialRecord(directory, trial, self.study.data)
        self.progress.start(trial.id, trial.decisions)
        try:
            self._train(trial, directory, record)
        except BadRewardError:
            raise
        except Interrupted:
            return
        except Exception as error:
            # Whatever a trial raises is that trial's. The traceback is kept beside it.
            write_text(directory / 'error.txt', traceback.format_exc())
            trial.fail(_reason(error))
        finally:
            record.write(trial)
        self.progress.end(trial.id, *outcome(trial), self._best())

    def _train(self, trial: Trial, directory: Path, record: TrialRecord) -> None:
        experiment = trial.materialize()
        reason = None
        with contextlib.closing(run(experiment, directory, self._should_pause)) as measurements:
            for measurement in measurements:
                if measurement.resumed_from and not record.is_resumed:
                    record.resumed(measurement.resumed_from)
                    self.progress.resume(trial.id, measurement.resumed_from)
                self._report(trial, measurement)
                record.write(trial)
                is_last = measurement.step == experiment.train.num_train_steps
                reason = None if is_last else self.study.should_stop(trial)
                if reason is not None:
                    break
        # Only now has the last save succeeded: a trial ends once, and cannot fail after that.
        if reason is not None:
            trial.stop(reason)
        else:
            trial.complete()

    def _report(self, trial: Trial, measurement: Measurement) -> None:
        try:
            trial.report(measurement.step, measurement.metrics)
        except UserError as error:
            raise BadRewardError(str(error)) from error
        # A resumed trial has measurements after this one, too.
        reward = next(each.reward for each in trial.measurements if each.step == measurement.step)
        self.progress.measure(trial.id, measurement.step, reward)

    def _should_pause(self) -> bool:
        is_late = self._deadline is not None and time.monotonic() > self._deadline
        return is_late or self._interrupted()

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


def _reason(error: Exception) -> str:
    if isinstance(error, NonFiniteLossError | NonFiniteRewardError):
        return str(error)
    text = str(error).strip().split('\n')[0]
    return f'{type(error).__name__}: {text}' if text else type(error).__name__
