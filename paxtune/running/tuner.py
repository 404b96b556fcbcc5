import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import sqlalchemy

from paxtune.running.callbacks import Callback
from paxtune.running.runner import Runner
from paxtune.running.trial_errors import StudyStoppedError, check_failures, reason_of
from paxtune.running.trial_json import TrialJson, is_outdated, write_final_state
from paxtune.running.trial_run import TrialRun
from paxtune.storage.database import DatabaseUnavailableError
from paxtune.study import stop_requests
from paxtune.study.checkpoint_retention import CheckpointCleaner
from paxtune.study.invariants import InvariantError
from paxtune.study.record import Status
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.transitions import DetachedError, IllegalTransition
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import trials_with_directories
from trainer.program.packing.place import Alone
from trainer.runtime.interrupt import InterruptRequested, asking, noted_ctrl_c
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
from trainer.symbolic.errors import full_disk_text, is_disk_full

if TYPE_CHECKING:
    from paxtune.running.hparams import HParams


class Paused(Exception):
    """The study continues in the next call; the running trial was saved. The message says why."""


INTERRUPTED, STOP_REQUESTED = 'interrupted', 'python -m paxtune.studies stop asked for it'
NOT_BEGUN = 'interrupted before the search began'
"""Reasons of a pause: a signal, or a request."""

_POLL_SECONDS = 0.5
_COLLECTING = 20.0  # The time to the next collection, by the time that one takes.

_GONE = DatabaseUnavailableError, sqlalchemy.exc.SQLAlchemyError


def prepare_to_run(study: Study) -> None:
    """Withdraws a request to pause, and writes records that an earlier process did not write."""
    stop_requests.resume(study.store)
    begun = trials_with_directories(study.directory)
    ended = [trial for trial in study.current if trial.is_terminal]
    _write_final_states(study, [trial for trial in ended if trial.id in begun])


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
        self._should_interrupt = should_interrupt
        self._is_ctrl_c: Callable[[], bool] = lambda: False
        self._place = place or Alone()
        self._paused = {
            trial.id for trial in study.current.unended if trial.status is Status.PAUSED
        }
        self._is_detached = False
        self._retention = CheckpointCleaner(study)
        self._hparams = None if study.directory is None else _hparams(study)
        self._clock = WallClock()
        self._next_collection = 0.0

    def run(self) -> None:
        """Takes a study up, and runs trials until it is done; raises as `join`."""
        if not self.study.store.is_shared:
            prepare_to_run(self.study)
        self.join()

    def join(self) -> None:
        """Runs trials of a prepared study, beside other tuners, until it is done.

        Raises:
            Paused: `should_interrupt` or a request asked for it, or hours are used up.
            StudyStoppedError: an error of a trial stops the study.
            BadRewardError: the reward needs a metric that is not measured.
            OtherTrialError: a directory holds files of another trial.
        """
        with (
            measuring(self._place.clock()) as self._clock,
            self._clock.phase(OTHER),
            noted_ctrl_c() as self._is_ctrl_c,
        ):
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
                        self._collect()
                    self._place.give_way()
            except DetachedError:
                self._is_detached = True
                raise
            except Exception as error:
                if is_disk_full(error):
                    raise StudyStoppedError(full_disk_text(error, self.study.directory)) from error
                if isinstance(error, OSError | InvariantError):  # Not of the trial itself.
                    raise StudyStoppedError(reason_of(error)) from error
                raise
        if not study.is_done and not self._is_ctrl_c():
            raise Paused(INTERRUPTED if self._interrupted() else STOP_REQUESTED)

    def _collect(self) -> None:
        """Collects garbage: a traceback may hold the state of the run.

        A collection looks at all objects, so in a large study of short trials it waits its turn.
        """
        if (began := time.monotonic()) >= self._next_collection:
            gc.collect()
            self._next_collection = began + _COLLECTING * (time.monotonic() - began)

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
        # Thousands of draws may be infeasible.
        with contextlib.suppress(InterruptRequested), asking(self._interrupted):
            return self.study.ask()
        return None

    def _note_rest(self) -> None:
        """Adds the time since the last trial to the profile of the study."""
        if not self._is_detached:
            rest = self._clock.take()
            with contextlib.suppress(*_GONE, DetachedError, OSError):  # It is for people alone.
                self.study.store.update_study(
                    lambda record: dataclasses.replace(record, profile=added(record.profile, rest))
                )

    def _has_others(self) -> bool:
        is_active = (trial.status is Status.ACTIVE for trial in self.study.current.unended)
        return self.study.store.is_shared or any(is_active)

    @contextlib.contextmanager
    def _given_back(self, trial: RunningTrial) -> Iterator[None]:
        """Gives a trial back that an error has left, for another call in this process."""
        try:
            yield
        except (*_GONE, DetachedError):
            raise
        except BaseException:
            if not self.study.store.is_shared and trial.view.status is Status.ACTIVE:
                # An interrupt may come after its end was committed, and before that was known here.
                with contextlib.suppress(IllegalTransition, *_GONE):
                    trial.release('the search ended')
            raise

    def _report_ended_while_paused(self) -> None:
        if not self._paused:
            return
        unended = self.study.current.unended
        paused = {trial.id for trial in unended if trial.status is Status.PAUSED}
        for number in sorted(self._paused - paused):
            self._paused.remove(number)
            trial = self.study.trial(number)
            if trial.is_terminal:
                _write_final_states(self.study, [trial])
                for callback in self._callbacks:
                    callback.on_trial_end(self.study, trial)

    def _interrupted(self) -> bool:
        return self._is_ctrl_c() or self._should_interrupt()

    def _may_begin(self) -> bool:
        check_failures(self.study.current, self.study.search.faults)
        return not (self._interrupted() or stop_requests.is_pause_requested(self.study.store))

    def _run_trial(self, trial: RunningTrial) -> None:
        record = TrialJson(self.study, trial.view, self._runner.num_devices, self._clock)
        session = None if self._hparams is None else self._hparams.session(trial.view)
        TrialRun(
            self.study, trial, self._runner, self._callbacks, self._interrupted, record, session
        ).run()
        if trial.view.status is Status.PAUSED:
            self._paused.add(trial.id)
        with phase(CHECKPOINTS):
            self._retention.remove_unneeded()
