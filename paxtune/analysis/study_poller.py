"""Reads a study repeatedly: the poller of live views, of the page, and of callbacks."""

import dataclasses
import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from paxtune.analysis.study_state import StudyState, TrialProgress, bare_trials
from paxtune.study.record import Status, StudyRecord
from paxtune.study.store import StudyStore
from paxtune.study.study_view import StudyView
from paxtune.study.trial import TRIALS, Trial
from paxtune.study.trial_paths import attempt_directory
from paxtune.study.trial_table import TrialTable
from trainer.runtime.directory import JobPath
from trainer.runtime.metrics_file import METRICS, last_training_record
from trainer.symbolic.errors import UserError

LOSS, SPEED = 'train/loss', 'train/steps_per_second'

_MAX_LOSSES = 64  # Training losses that are kept of a running trial.

Read: TypeAlias = tuple[StudyRecord, Sequence[Trial], datetime.datetime]
"""The record of a study, all its trials, and the time at which it was created."""

Source: TypeAlias = Callable[[], Read]
MetricsFile: TypeAlias = Callable[[Trial], JobPath | None]


def source_of(store: StudyStore, where: str) -> Source:
    """Makes a source of bare trials, which reads ended trials once.

    It raises UserError if the store has no study of this version.
    """
    table = TrialTable(where=where)

    def read() -> Read:
        study = store.study()
        if study is None:
            raise UserError(f'There is no study in {where}: nothing was written yet.')
        trials = table.read(store, lambda record: bare_trials(study, [record])[0])
        return study, trials, store.created()

    return read


def found_metrics(directory: Path) -> MetricsFile:
    """Finds the files of metrics in the directory of a study whose classes are unknown.

    The directory of a trial has a name of its decisions, which only the classes can read.
    """

    def metrics_of(trial: Trial) -> Path | None:
        attempt = f'attempt_{trial.attempt}/' if trial.attempt > 1 else ''
        return next(directory.glob(f'{TRIALS}/{trial.id:04d}-*/{attempt}{METRICS}'), None)

    return metrics_of


@dataclasses.dataclass
class _Observed:
    """Steps of one attempt, as observed from outside."""

    attempt: int
    step: int
    first_step: int
    first_time: float
    last_time: float
    changed: datetime.datetime | None = None
    losses: list[float] = dataclasses.field(default_factory=list)

    @property
    def speed(self) -> float | None:
        seconds = self.last_time - self.first_time
        return (self.step - self.first_step) / seconds if seconds > 0 else None


class StudyPoller:
    """Reads a study again and again, and observes the steps of its running trials."""

    def __init__(self, source: Source, metrics_of: MetricsFile = lambda trial: None) -> None:
        """Prepares to read a study.

        Args:
            source: reads the study.
            metrics_of: returns the file in which a trial reports its steps, if there is one.
        """
        self._source, self._metrics_of = source, metrics_of
        self._observed: dict[int, _Observed] = {}
        self._metrics: dict[tuple[int, int], JobPath] = {}
        self._records: dict[tuple[int, int], Mapping[str, Any]] = {}
        self._steps: dict[int, Mapping[str, Any]] = {}
        self._unended: set[int] | None = None
        self._newest = 0

    @classmethod
    def of(cls, study: StudyView) -> 'StudyPoller':
        """Makes the poller of an open study."""

        def read() -> Read:
            return study.record, study.current, created

        created = study.store.created()

        def metrics_of(trial: Trial) -> JobPath | None:
            home = study.directory
            return None if home is None else attempt_directory(home, trial) / METRICS

        return cls(read, metrics_of)

    def note_step(self, number: int, step: int, metrics: Mapping[str, float]) -> None:
        """Notes a step that a trial has begun, which no file has yet."""
        self._steps[number] = {**self._steps.get(number, {}), **metrics, 'step': step}

    def poll(self) -> StudyState:
        """Reads the current state."""
        record, trials, created = self._source()
        # A Tunable, which holds its search, is trained: it compiles before its first step.
        opened = [each for each in trials if each.status.is_open]
        running = [self._progress(each, not record.search) for each in opened]
        self._forget(trials)
        now = datetime.datetime.now(datetime.UTC)
        return StudyState(record, trials, created, now, running, self._newly_ended(trials))

    def _newly_ended(self, trials: Sequence[Trial]) -> list[Trial]:
        """Returns the trials that have ended since the poll before, in that order."""
        is_first, before, newest = self._unended is None, self._unended or set(), self._newest
        self._unended = {trial.id for trial in trials if not trial.is_terminal}
        self._newest = max((trial.id for trial in trials), default=0)
        if is_first:
            return []
        fresh = [
            each for each in trials if each.is_terminal and (each.id in before or each.id > newest)
        ]
        return sorted(fresh, key=lambda trial: (trial.record.ended or trial.created, trial.id))

    def _progress(self, trial: Trial, is_trained: bool) -> TrialProgress:
        record, measured = trial.record, trial.measurements[-1:]
        # Steps of attempts that resumed from a checkpoint.
        resumed = [event.step for event in record.history if event.step is not None]
        training = self._training(trial, is_trained)
        begun = [training['step']] if training else []
        step = max([0, *(each.step for each in measured), *resumed[-1:], *begun])
        observed = self._observe(trial, step, training)
        moments = [event.time for event in record.history[-1:]]
        moments += [] if observed.changed is None else [observed.changed]
        curve = tuple(each.rewards[0] for each in trial.measurements if each.rewards)
        is_paused = trial.status is Status.PAUSED
        state = 'paused' if is_paused else 'starting' if is_trained and not step else 'running'
        return TrialProgress(
            trial=trial,
            state=state if record.holder or is_paused else 'waiting',
            step=step,
            curve=curve or tuple(observed.losses),
            speed=training.get(SPEED, observed.speed),
            training=training,
            since=max(moments, default=None),
        )

    def _observe(self, trial: Trial, step: int, training: Mapping[str, float]) -> _Observed:
        now = time.monotonic()
        observed = self._observed.get(trial.id)
        if observed is None or observed.attempt != trial.attempt or step < observed.step:
            observed = _Observed(trial.attempt, step, step, now, now)
            self._observed[trial.id] = observed
            observed.losses += [training[LOSS]] if LOSS in training else []
        elif step != observed.step:
            if observed.first_step == 0:  # The time to the first step includes compilation.
                observed.first_step, observed.first_time = step, now
            observed.step, observed.last_time = step, now
            observed.changed = datetime.datetime.now(datetime.UTC)
            observed.losses += [training[LOSS]] if LOSS in training else []
            del observed.losses[:-_MAX_LOSSES]
        return observed

    def _training(self, trial: Trial, is_trained: bool) -> Mapping[str, Any]:
        if (noted := self._steps.get(trial.id)) is not None:
            return noted
        if not is_trained:  # A file of this name is the function's own.
            return {}
        key = trial.id, trial.attempt
        if trial.status is Status.PAUSED and key in self._records:
            return self._records[key]
        if key not in self._metrics:
            if (path := self._metrics_of(trial)) is None:
                return {}
            self._metrics[key] = path
        self._records[key] = last_training_record(self._metrics[key]) or {}
        return self._records[key]

    def _forget(self, trials: Sequence[Trial]) -> None:
        """Forgets ended trials."""
        ended = {trial.id for trial in trials if trial.is_terminal}
        for number in ended & {*self._observed, *list(self._steps)}:
            self._observed.pop(number, None)
            self._steps.pop(number, None)
        self._metrics = {key: path for key, path in self._metrics.items() if key[0] not in ended}
        self._records = {key: last for key, last in self._records.items() if key[0] not in ended}
