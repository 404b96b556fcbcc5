import contextlib
import dataclasses
import functools
import gc
import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import sqlalchemy

from paxtune.objectives.metrics import split_name
from paxtune.objectives.rewards import Reward
from paxtune.running import trial_errors
from paxtune.running.callbacks import Callback
from paxtune.running.other_trials import OtherTrialError, require_no_link, require_own_record
from paxtune.running.runner import Refusal, Runner, Running
from paxtune.running.trial_errors import reason_of
from paxtune.running.trial_json import TrialJson, is_outdated, write_final_state
from paxtune.schedulers import Pause, Stop
from paxtune.storage.database import DatabaseUnavailableError
from paxtune.study import stop_requests
from paxtune.study.checkpoint_retention import CheckpointCleaner
from paxtune.study.reasons import commonest
from paxtune.study.record import Status
from paxtune.study.running_trial import RunningTrial
from paxtune.study.stopping_criteria import seconds_left
from paxtune.study.study import Study
from paxtune.study.transitions import DetachedError, IllegalTransition
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import trial_directory
from trainer.loop.report import Interrupted, Report
from trainer.program.packing.place import Alone
from trainer.runtime.directory import JobPath, write_text
from trainer.runtime.signals import StopTrial
from trainer.runtime.step_events import listening
from trainer.runtime.throughput import THROUGHPUT_METRICS
from trainer.runtime.wall_clock import (
    CHECKPOINTS,
    IDLE,
    OTHER,
    SUGGESTIONS,
    WallClock,
    added,
    during,
    measuring,
    phase,
)
from trainer.symbolic.errors import LostProcessError, UserError, full_disk_text, is_disk_full

if TYPE_CHECKING:
    from paxtune.running.hparams import HParams, Session


class Paused(Exception):
    """The study continues in the next call; the running trial was saved. The message says why."""


class StudyStoppedError(Exception):
    """An error stopped the study, as `search.faults` demands. The message says which.

    The trial continues in the next call.

    Attributes:
        study: the study, open, where it is in memory: `paxtune.tune(…, study=error.study)`
            continues it.
    """

    study: Study | None = None


class BadRewardError(UserError):
    """The reward cannot be made of what is measured: no trial of this study can have one."""


INTERRUPTED, STOP_REQUESTED = 'interrupted', 'python -m paxtune.studies stop asked for it'
"""Reasons of a pause: a signal, or a request."""

_POLL_SECONDS = 0.5

_LOST = DatabaseUnavailableError, DetachedError, sqlalchemy.exc.SQLAlchemyError, OSError


def take_up(study: Study) -> None:
    """Withdraws a request to pause, and writes records that an earlier process did not write."""
    stop_requests.resume(study.store)
    _write_final_states(study, [trial for trial in study.trials if trial.is_terminal])


def _write_final_states(study: Study, trials: Iterable[Trial]) -> None:
    """Writes the records of terminal trials, and their HParams, unless they are up to date."""
    for trial in trials:
        if is_outdated(study, trial):
            _hparams(study).session(trial).close(trial)
            write_final_state(study, trial)


def _hparams(study: Study) -> 'HParams':
    # Imported here: TensorBoard's files take a third of a second.
    from paxtune.running.hparams import HParams

    return HParams(study)


class Tuner:
    """Runs the trials of a study in this process, one after another.

    A failure inside a trial (an exception, a loss that is not finite, no memory) makes that trial
    infeasible. The study continues, unless its search says otherwise.
    """

    def __init__(
        self,
        study: Study,
        runner: Runner,
        callbacks: Sequence[Callback] = (),
        should_interrupt: Callable[[], bool] = lambda: False,
        place: Alone | None = None,
    ):
        """Makes a tuner.

        Args:
            study, runner, callbacks, should_interrupt: as in `paxtune.engines.base.Job`.
            place: where this tuner works; by default it shares this process with no other.
        """
        self.study = study
        self._runner, self._callbacks = runner, list(callbacks)
        self._interrupted = should_interrupt
        self._place = place or Alone()
        self._seconds_left: float | None = None
        self._asked_to_pause = False
        self._pausing: Pause | None = None  # The scheduler's decision about the running trial.
        self._paused = {trial.id for trial in study.trials if trial.is_paused}
        self._is_detached = False
        self._retention = CheckpointCleaner(study)
        self._hparams = None if study.directory is None else _hparams(study)
        self._session: Session | None = None
        self._clock = WallClock()
        self._began = self._clock.read()

    def run(self) -> None:
        """Takes a study up, and runs trials until it is done; raises as `join`."""
        if not self.study.store.is_shared:
            take_up(self.study)
        self.join()

    def join(self) -> None:
        """Runs trials of a study that is taken up, beside other tuners, until it is done.

        Raises:
            Paused: `should_interrupt` or a request asked for it, or hours are used up.
            StudyStoppedError: an error of a trial stops the study.
            BadRewardError: the reward needs a metric that is not measured.
            OtherTrialError: a directory holds files of another trial.
        """
        with measuring(self._place.clock()) as self._clock, self._clock.phase(OTHER):
            self._run()

    def _run(self) -> None:
        study = self.study
        with contextlib.ExitStack() as listening:
            for callback in self._callbacks:
                callback.on_study_start(study)
                listening.callback(callback.on_study_end, study)
            listening.callback(self._note_rest)
            try:
                while self._may_begin() and (trial := self._next()) is not None:
                    with self._given_back(trial):
                        self._run_trial(trial)
                    if trial.view.is_failed:
                        gc.collect()  # A traceback may hold the state of the run.
                    self._place.give_way()
            except Exception as error:
                if is_disk_full(error):
                    raise StudyStoppedError(full_disk_text(error, self.study.directory)) from error
                if isinstance(error, OSError):  # Of the study's own files, or of a callback.
                    raise StudyStoppedError(reason_of(error)) from error
                raise
        if not study.is_done:
            raise Paused(INTERRUPTED if self._interrupted() else STOP_REQUESTED)

    def _next(self) -> RunningTrial | None:
        while (trial := self._suggest()) is None:
            self._report_ended_while_paused()
            # There is nothing to do now; a trial that another worker loses may come.
            if not self._has_others() or self.study.is_done or not self._may_begin():
                return None
            with phase(IDLE):
                self._place.wait(_POLL_SECONDS)
        self._report_ended_while_paused()
        return trial

    @during(SUGGESTIONS)
    def _suggest(self) -> RunningTrial | None:
        return self.study.suggest()

    def _note_rest(self) -> None:
        """Adds what passed since the last trial to the profile of the study."""
        if not self._is_detached:
            rest = self._clock.take()
            with contextlib.suppress(*_LOST):  # It is for people alone.
                self.study.store.update_study(
                    lambda record: dataclasses.replace(record, profile=added(record.profile, rest))
                )

    def _has_others(self) -> bool:
        is_active = (trial.status is Status.ACTIVE for trial in self.study.trials)
        return self.study.store.is_shared or any(is_active)

    @contextlib.contextmanager
    def _given_back(self, trial: RunningTrial) -> Iterator[None]:
        """Gives a trial back that an error has left, for another call in this process."""
        try:
            yield
        except (DatabaseUnavailableError, DetachedError, sqlalchemy.exc.SQLAlchemyError):
            raise
        except BaseException:
            if not self.study.store.is_shared and trial.view.status is Status.ACTIVE:
                # An interrupt may come after its end was committed, and before that was known here.
                ended = IllegalTransition
                lost = DatabaseUnavailableError, sqlalchemy.exc.SQLAlchemyError
                with contextlib.suppress(ended, *lost):
                    trial.release('the search ended')
            raise

    def _report_ended_while_paused(self) -> None:
        for number in sorted(self._paused):
            trial = self.study.trial(number)
            if not trial.is_paused:
                self._paused.remove(number)
            if trial.is_terminal:
                _write_final_states(self.study, [trial])
                for callback in self._callbacks:
                    callback.on_trial_end(self.study, trial)

    def _may_begin(self) -> bool:
        self._check_failures()
        self._asked_to_pause = stop_requests.is_pause_requested(self.study.store)
        self._seconds_left = None
        return not self._should_pause()

    def _run_trial(self, trial: RunningTrial) -> None:
        home = self.study.directory
        directory = None if home is None else trial_directory(home, trial.view)
        if directory is not None:
            require_no_link(home, directory)
            directory.mkdir(parents=True, exist_ok=True)
            require_own_record(directory, trial.view)
        devices = self._runner.num_devices
        record = TrialJson(directory, trial.view, self.study.data, devices, self._clock)
        self._session = None if self._hparams is None else self._hparams.session(trial.view)
        self._began, self._pausing = self._clock.read(), None
        self._seconds_left = self._left(trial.view, record)
        for callback in self._callbacks:
            callback.on_trial_start(self.study, trial.view)
        try:
            self._attempt(trial, record)
        except trial_errors.OutsideError as error:
            raise error.args[0] from None
        except DetachedError:
            self._is_detached = True
            raise
        except (
            BadRewardError,
            DatabaseUnavailableError,
            LostProcessError,
            OtherTrialError,
            sqlalchemy.exc.SQLAlchemyError,
        ):
            raise
        except Interrupted as interrupted:
            self._put_back(trial, interrupted.step)
        except Exception as error:
            self._fail(trial, directory, error)
        finally:
            if self._session is not None:
                self._session.close(trial.view)
            if not self._is_detached:
                record.write(trial.view)
        if trial.view.is_terminal:
            for callback in self._callbacks:
                callback.on_trial_end(self.study, trial.view)
        with phase(CHECKPOINTS):
            self._retention.remove_unneeded()

    def _attempt(self, trial: RunningTrial, record: TrialJson) -> None:
        prepared = reason = signal = None
        try:
            prepared = self._runner.prepare(self.study, trial)
            if not isinstance(prepared, Refusal):
                reason = self._listen(trial, record, prepared)
        except DetachedError:
            raise
        except StopTrial as raised:
            signal = raised
        except Exception as error:
            if not is_disk_full(error):  # The study's database may be on that disk.
                record.note_time(trial)
            raise
        record.note_time(trial)
        # Only now has the last save succeeded: a trial ends once, and cannot fail after that.
        if isinstance(prepared, Refusal):
            trial.fail(prepared.reason)
        elif signal is not None and (signal.reward is not None or signal.metrics is not None):
            trial.conclude(signal.reason, signal.reward, signal.metrics)
        elif signal is not None:
            trial.end_early(signal.reason)
        elif reason is not None:
            trial.end_early(reason)
        else:
            self._complete(trial)

    def _complete(self, trial: RunningTrial) -> None:
        is_timed = any(map(_is_of_speed, self.study.rewards))
        # Nothing is timed in the first step of a process, which may be the last of a trial.
        with contextlib.nullcontext() if is_timed and trial.resumed else _about_rewards():
            trial.complete()

    def _listen(self, trial: RunningTrial, record: TrialJson, run: Running) -> str | None:
        """Runs a trial; returns the reason of an early stop, or None at its end."""
        steps = listening(functools.partial(self._on_step, trial))
        with steps, contextlib.closing(run(self._should_leave)) as reports:
            for report in reports:
                if trial.resumed and not trial.step:
                    how = 'resumed' if report.resumed_from else 'restarted'
                    trial.add_event(how, report.resumed_from)
                if report.resumed_from and not record.is_resumed:
                    record.resumed(report.resumed_from)
                    with trial_errors.outside():
                        for callback in self._callbacks:
                            callback.on_trial_resume(self.study, trial.view, report.resumed_from)
                self._report(trial, report)
                with trial_errors.outside():
                    record.write(trial.view)
                    self._seconds_left = self._left(trial.view, record)
                if trial.id in stop_requests.stopped_trials(self.study.store):
                    return 'stopped by request'
                self._asked_to_pause = stop_requests.is_pause_requested(self.study.store)
                decision = None if report.is_last else self.study.decide(trial)
                if isinstance(decision, Stop):
                    return decision.reason
                self._pausing = decision
        return None

    def _on_step(self, trial: RunningTrial, step: int, metrics: Mapping[str, float]) -> None:
        with trial_errors.outside():
            for callback in self._callbacks:
                callback.on_step(self.study, trial.view, step, metrics)

    def _put_back(self, trial: RunningTrial, step: int) -> None:
        """Pauses or releases a trial that is in a checkpoint."""
        if self._pausing is None:
            trial.release(f'after step {step}')
            return
        trial.pause(step, self._pausing.reason)
        self._paused.add(trial.id)
        for callback in self._callbacks:
            callback.on_trial_pause(self.study, trial.view, self._pausing.reason)

    def _report(self, trial: RunningTrial, report: Report) -> None:
        with _about_rewards():
            measurement = trial.report(report.step, report.metrics, report.checkpoint)
        space = self.study.space
        has_all = report.is_last or (space.is_tunable and not space.sub_experiments)
        if has_all and not measurement.rewards:
            # Reports now, since the trial does not end here.
            self._require_rewards(trial, report.is_last)
        with trial_errors.outside():
            if self._session is not None:
                self._session.measured(measurement)
            for callback in self._callbacks:
                callback.on_measurement(self.study, trial.view, measurement)

    def _require_rewards(self, trial: RunningTrial, is_last: bool) -> None:
        """Raises BadRewardError unless the final metrics determine the rewards."""
        with _about_rewards():
            metrics = trial.final_metrics()
            for reward in self.study.rewards:
                # Nothing is timed in the first step of a process, which may be the last of a trial.
                if not (_is_of_speed(reward) and (trial.resumed or not is_last)):
                    reward.value(metrics)

    def _fail(self, trial: RunningTrial, directory: JobPath | None, error: Exception) -> None:
        if is_disk_full(error):
            raise error
        if directory is not None:
            write_text(directory / 'error.txt', traceback.format_exc())
        faults, trials = self.study.search.faults, self.study.trials
        if why := trial_errors.why_study_stops(error, trial.view, trials, faults):
            raise StudyStoppedError(why) from error
        trial.fail(reason_of(error), is_error=not isinstance(error, trial_errors.EXPECTED))

    def _check_failures(self) -> None:
        failed = [trial.id for trial in self.study.trials if trial.is_failed]
        most = self.study.search.faults.max_failures
        if most is not None and len(failed) > most:
            raise StudyStoppedError(
                f'{len(failed)} trials have failed ({", ".join(map(str, failed))}), and '
                f'search.faults.max_failures is {most}: see error.txt in their directories'
            )
        in_a_row = self.study.search.faults.max_consecutive_failures
        if in_a_row is not None and len(last := self._last_failures()) >= in_a_row:
            reasons = commonest(trial.reason or '' for trial in last)
            reasons_text = ''.join(f'\n  {count} × {reason}' for count, reason in reasons)
            raise StudyStoppedError(
                f'the last {len(last)} trials have all failed '
                f'(search.faults.max_consecutive_failures={in_a_row}):{reasons_text}\n'
            )

    def _last_failures(self) -> list[Trial]:
        ended = [trial for trial in self.study.trials if trial.is_terminal]
        own = [trial for trial in ended if not trial.lineage.is_imported]
        own.sort(key=lambda trial: (trial.completed, trial.id), reverse=True)
        return list(itertools.takewhile(lambda trial: trial.is_failed, own))

    def _left(self, trial: Trial, record: TrialJson) -> float | None:
        """Computes the seconds that this attempt may take, by the study's budgets of hours."""
        budget, devices = self.study.search.budget, self._runner.num_devices
        if budget.hours is None and budget.device_hours is None:
            return None
        others = [each for each in self.study.trials if each.id != trial.id]
        is_alive = self.study.store.is_alive
        return seconds_left(budget, others, record.seconds_before, devices, is_alive)

    def _should_leave(self) -> bool:
        """Returns True if the running trial must save a checkpoint now."""
        return self._should_pause() or self._pausing is not None

    def _should_pause(self) -> bool:
        left = self._seconds_left
        is_late = left is not None and self._clock.read() - self._began > left
        return self._interrupted() or is_late or self._asked_to_pause


def _is_of_speed(reward: Reward) -> bool:
    return any(split_name(metric.name)[0] in THROUGHPUT_METRICS for metric in reward.metrics)


@contextlib.contextmanager
def _about_rewards() -> Iterator[None]:
    """Turns errors of rewards into BadRewardError: all trials would raise them."""
    try:
        yield
    except UserError as error:
        path = '' if str(error).startswith('search.') else 'search.'
        raise BadRewardError(f'{path}{error}') from error
