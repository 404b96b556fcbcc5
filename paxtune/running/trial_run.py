"""One attempt at a trial, from its start to its end, in this process."""

import contextlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import sqlalchemy

from paxtune.objectives.aggregation import NothingMeasuredError
from paxtune.objectives.metrics import split_name
from paxtune.objectives.rewards import NonFiniteRewardError, Reward
from paxtune.running import trial_errors
from paxtune.running.callbacks import Callback
from paxtune.running.runner import Refusal, Runner, Running
from paxtune.running.trial_errors import BadRewardError, StudyStoppedError, about_rewards, outside
from paxtune.running.trial_json import OtherTrialError, TrialJson
from paxtune.schedulers import Pause
from paxtune.storage.database import DatabaseUnavailableError
from paxtune.study.invariants import InvariantError
from paxtune.study.running_trial import RunningTrial
from paxtune.study.stopping_criteria import seconds_left
from paxtune.study.study import Study
from paxtune.study.transitions import DetachedError
from paxtune.study.trial_table import Trials
from trainer.loop.report import Interrupted, Report
from trainer.runtime.directory import write_text
from trainer.runtime.interrupt import kept_surroundings
from trainer.runtime.signals import StopTrial
from trainer.runtime.step_events import listening
from trainer.runtime.throughput import THROUGHPUT_METRICS
from trainer.symbolic.errors import LostProcessError, is_disk_full

if TYPE_CHECKING:
    from paxtune.running.hparams import Session

_ENDS_SEARCH = (
    DatabaseUnavailableError,
    InvariantError,
    LostProcessError,
    OtherTrialError,
    sqlalchemy.exc.SQLAlchemyError,
)


class TrialRun:
    """Runs one trial in one attempt, keeps its record, and calls the callbacks."""

    def __init__(
        self,
        study: Study,
        trial: RunningTrial,
        runner: Runner,
        callbacks: Sequence[Callback],
        should_interrupt: Callable[[], bool],
        record: TrialJson,
        session: 'Session | None',
    ) -> None:
        """Begins an attempt at an ACTIVE trial.

        Args:
            study, runner, callbacks, should_interrupt: as in `paxtune.engines.base.Job`.
            record: of this attempt.
            session: of HParams; None if the study has no directory.
        """
        self._study, self._runner, self._callbacks = study, runner, callbacks
        self._trial = trial
        self._should_interrupt = should_interrupt
        self._record, self._session = record, session
        self._pausing: Pause | None = None
        self._is_study_pausing = False
        self._seconds_left: float | None = None

    def run(self) -> None:
        """Runs the trial until it has ended, is paused or is released; raises as `Tuner.join`."""
        is_detached = False
        if self._study.search.budget.has_hours:
            self._seconds_left = self._budgeted(self._study.current)
        self._notify(lambda each: each.on_trial_start(self._study, self._trial.view))
        try:
            self._end(self._attempt())
        except trial_errors.OutsideError as error:
            is_detached = isinstance(error.args[0], DetachedError)
            raise error.args[0] from None
        except DetachedError:
            is_detached = True
            raise
        except BadRewardError as error:
            if not self._others_have_rewards():
                raise
            self._fail(error)
        except _ENDS_SEARCH:
            raise
        except Interrupted as interrupted:
            self._put_back(interrupted.step)
        except Exception as error:
            self._fail(error)
        finally:
            if self._session is not None:
                self._session.close(self._trial.view)
            if not is_detached:  # Another process owns the record by now.
                self._record.write(self._trial.view)
        if self._trial.view.is_terminal:
            self._notify(lambda each: each.on_trial_end(self._study, self._trial.view))

    def _others_have_rewards(self) -> bool:
        """Returns True if the reward fits other trials: then it is this one that lacks a metric."""
        others = (each for each in self._study.trials if each.id != self._trial.id)
        return any(each.rewards or each.score_curve for each in others)

    def _notify(self, event: Callable[[Callback], None]) -> None:
        for callback in self._callbacks:
            event(callback)

    def _attempt(self) -> Refusal | StopTrial | None:
        """Runs the trial, and returns why it ends before its last step; None if it does not."""
        end: Refusal | StopTrial | None
        try:
            with kept_surroundings():
                prepared = self._runner.prepare(self._study, self._trial)
                end = prepared if isinstance(prepared, Refusal) else self._listen(prepared)
        except DetachedError:
            raise
        except StopTrial as signal:
            end = signal
        except Exception as error:
            if not is_disk_full(error):  # The study's database may be on that disk.
                self._record.note_time(self._trial)
            raise
        self._record.note_time(self._trial)
        return end

    def _listen(self, run: Running) -> StopTrial | None:
        """Runs the trial; returns the reason of an early stop, or None at its end."""
        with listening(self._on_step), contextlib.closing(run(self._should_leave)) as reports:
            for report in reports:
                self._note_resumption(report)
                self._report(report)
                with outside():
                    self._record.write(self._trial.view)
                asked = self._study.poll(self._trial, may_decide=not report.is_last)
                if asked.stop is not None:
                    return StopTrial(asked.stop)
                with outside():
                    self._seconds_left = self._budgeted(asked.trials)
                self._is_study_pausing, self._pausing = asked.is_study_pausing, asked.pause
        return None

    def _should_leave(self) -> bool:
        """Returns True if the trial must save a checkpoint now."""
        left = self._seconds_left
        is_late = left is not None and self._record.elapsed > left
        is_asked = self._is_study_pausing or self._pausing is not None
        return self._should_interrupt() or is_late or is_asked

    def _budgeted(self, trials: Trials) -> float | None:
        """Computes the seconds that this attempt may take; None without a budget of hours."""
        budget = self._study.search.budget
        if not budget.has_hours:
            return None
        return seconds_left(
            budget,
            trials,
            self._trial.id,
            self._record.seconds_before,
            self._runner.num_devices,
            self._study.store.is_alive,
        )

    def _on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        with outside(BaseException):  # The code of the trial surrounds it.
            self._notify(lambda each: each.on_step(self._study, self._trial.view, step, metrics))

    def _note_resumption(self, report: Report) -> None:
        trial, step = self._trial, report.resumed_from
        if trial.resumed and not trial.step:
            trial.add_event('resumed' if step else 'restarted', step)
        if step and not self._record.is_resumed:
            self._record.resumed(step)
            with outside():
                self._notify(lambda each: each.on_trial_resume(self._study, trial.view, step))

    def _report(self, report: Report) -> None:
        with about_rewards():
            measurement = self._trial.report(
                report.step, report.metrics, report.checkpoint, report.undefined
            )
        space = self._study.space
        has_all = report.is_last or (space.is_tunable and not space.sub_experiments)
        if has_all and not measurement.rewards:
            # Reports now, since the trial does not end here.
            self._require_rewards(report.is_last)
        with outside():
            if self._session is not None:
                self._session.measured(measurement)
            view = self._trial.view
            self._notify(lambda each: each.on_measurement(self._study, view, measurement))

    def _require_rewards(self, is_last: bool) -> None:
        """Raises BadRewardError unless the final metrics determine the rewards."""
        # A metric that is undefined so far may have a value at the next step.
        undefined = NonFiniteRewardError, NothingMeasuredError
        with about_rewards(), contextlib.suppress(*undefined):
            metrics = self._trial.final_metrics()
            for reward in self._study.rewards:
                # Nothing is timed in the first step of a process, which may be the last of a trial.
                is_timed_later = _is_of_speed(reward) and (self._trial.resumed or not is_last)
                if not is_timed_later and (is_last or not _is_decoded(reward)):
                    reward.value(metrics)

    def _end(self, end: Refusal | StopTrial | None) -> None:
        # Only now has the last save succeeded: a trial ends once, and cannot fail after that.
        trial = self._trial
        if isinstance(end, Refusal):
            trial.fail(end.reason)
        elif end is not None and (end.reward is not None or end.metrics is not None):
            trial.conclude(end.reason, end.reward, end.metrics)
        elif end is not None:
            trial.end_early(end.reason)
        else:
            is_timed = any(map(_is_of_speed, self._study.rewards))
            # Nothing is timed in the first step of a process, which may be the last of a trial.
            with contextlib.nullcontext() if is_timed and trial.resumed else about_rewards():
                trial.complete()

    def _put_back(self, step: int) -> None:
        """Pauses or releases the trial, which is in a checkpoint."""
        if self._pausing is None:
            self._trial.release(f'after step {step}')
            return
        reason = self._pausing.reason
        self._trial.pause(step, reason)
        self._notify(lambda each: each.on_trial_pause(self._study, self._trial.view, reason))

    def _fail(self, error: Exception) -> None:
        if is_disk_full(error):
            raise error
        if (directory := self._trial.directory) is not None:
            write_text(directory / 'error.txt', traceback.format_exc())
        faults, trials = self._study.search.faults, self._study.current
        if why := trial_errors.why_study_stops(error, self._trial.view, trials, faults):
            raise StudyStoppedError(why) from error
        is_error = not isinstance(error, trial_errors.EXPECTED)
        self._trial.fail(trial_errors.reason_of(error), is_error=is_error)


def _is_of_speed(reward: Reward) -> bool:
    return any(split_name(metric.name)[0] in THROUGHPUT_METRICS for metric in reward.metrics)


def _is_decoded(reward: Reward) -> bool:
    # Not every evaluation decodes, and only the data determine these names.
    return any(metric.name.startswith('decode_') for metric in reward.metrics)
