"""The state of a study at one moment, as the live views show it."""

import dataclasses
import datetime
import heapq
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paxtune.reports.overview import Overview, bare_trials
from paxtune.study.record import StudyRecord
from paxtune.study.store import StudyStore
from paxtune.study.trial import TRIALS, Trial
from trainer.runtime.metrics_file import METRICS, last_training_record
from trainer.symbolic.errors import UserError

LOSS, SPEED = 'train/loss', 'train/steps_per_second'

_EVENTS = 8
_TIMED_TRIALS = 20  # The last ones: later trials of a search are often larger.
_CURVE = 64  # Training losses that are kept of a running trial.


@dataclasses.dataclass(frozen=True)
class Running:
    """A trial that has begun and not ended.

    Attributes:
        state: 'starting', 'running', 'paused', or 'waiting' for a worker.
        worker: its owner; '' while it waits for one.
        attempt: the number of the attempt.
        step: the last reported step.
        rewards: of its last measurement.
        curve: its rewards so far; before the first of them its training losses.
        speed: in steps per second; None if unknown.
        event: the kind of its last event.
        decisions: as one line; '' where they cannot be read.
        training: the last record of training.
        began: the time at which this attempt began.
        since: the time of `event`, or of the last observed step; None if unknown.
    """

    number: int
    state: str
    worker: str
    attempt: int
    step: int
    rewards: tuple[float, ...]
    curve: tuple[float, ...]
    speed: float | None
    event: str
    decisions: str
    training: Mapping[str, float]
    began: datetime.datetime | None
    since: datetime.datetime | None


@dataclasses.dataclass(frozen=True)
class TrialEvent:
    """An entry of the history of a trial."""

    time: datetime.datetime
    trial: int
    event: str
    detail: str


@dataclasses.dataclass(frozen=True)
class StudySnapshot:
    """The state of a study at one moment.

    Attributes:
        where: the name of the study for people.
        reward_names: one for each objective.
        events: the last ones, in order of time.
        ended_lines: one for each trial that has ended since the read before.
        failed: the number of infeasible trials that ended by an error.
        best_decisions: of the best trial, as one line; '' where they cannot be read.
        seconds_left: the estimated time to the end; None if unknown.
        is_to_pause: a pause was requested.
    """

    where: str
    reward_names: Sequence[str]
    overview: Overview
    running: list[Running]
    events: list[TrialEvent]
    ended_lines: list[str]
    failed: int
    best_decisions: str
    seconds_left: float | None
    is_to_pause: bool

    @property
    def num_ended(self) -> int:
        """The number of trials that have ended."""
        return sum(count for how, count in self.overview.counts.items() if how.has_ended)


@dataclasses.dataclass
class _Observed:
    """Steps of one attempt, as they were seen from outside."""

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


Source = Callable[[], tuple[StudyRecord, Sequence[Trial]]]
"""Reads the record of a study and all its trials."""


def source_of(store: StudyStore, where: str) -> Source:
    """Makes a source of bare trials, which reads ended trials once.

    It raises UserError where the store has no study of this version.
    """
    ended: dict[int, Trial] = {}

    def read() -> tuple[StudyRecord, Sequence[Trial]]:
        study = store.study()
        if study is None:
            raise UserError(f'There is no study in {where}: nothing was written yet.')
        numbers, fresh = store.read(ended)
        known = ended | {trial.id: trial for trial in bare_trials(study, fresh)}
        trials = [known[number] for number in numbers]
        ended.clear()
        ended.update((each.id, each) for each in trials if each.is_terminal)
        return study, trials

    return read


class SnapshotReader:
    """Reads a study repeatedly, and notes the speed of its running trials."""

    def __init__(
        self,
        source: Source,
        created: Callable[[], datetime.datetime],
        where: str,
        directory: Path | None = None,
        reward_names: Sequence[str] = ('reward',),
        describe: Callable[[Trial], str] = lambda trial: '',
    ) -> None:
        """Prepares to read a study.

        Args:
            created: returns the time at which the study was created.
            where: its name for people.
            directory: of the study, where it is known: trials report steps there.
            describe: renders the decisions of a trial on one line.
        """
        self._source, self._created = source, created
        self._where, self._directory = where, directory
        self._reward_names, self._describe = reward_names, describe
        self._observed: dict[int, _Observed] = {}
        self._metrics: dict[tuple[int, int], Path] = {}
        self._steps: dict[int, Mapping[str, Any]] = {}
        self._unended: set[int] | None = None
        self._newest = 0

    def note_step(self, number: int, step: int, metrics: Mapping[str, float]) -> None:
        """Notes a step that a trial has begun, which no file has yet."""
        self._steps[number] = {**self._steps.get(number, {}), **metrics, 'step': step}

    def read(self) -> StudySnapshot:
        """Reads the current state."""
        study, trials = self._source()
        overview = Overview.of(study, trials, self._created())
        # A Tunable, which holds its search, compiles before its first step.
        running = [self._running(each, not study.search) for each in trials if each.status.is_open]
        self._forget(trials)
        best = next((each for each in trials if each.id == overview.best_trial), None)
        ended = sum(trial.is_terminal for trial in trials)
        left = None if overview.num_trials is None else overview.num_trials - ended
        now = datetime.datetime.now(datetime.UTC)
        return StudySnapshot(
            where=self._where,
            reward_names=self._reward_names,
            overview=overview,
            running=running,
            events=last_events(trials),
            ended_lines=[self._ended_line(trial) for trial in self._newly_ended(trials)],
            failed=sum(trial.is_failed for trial in trials),
            best_decisions='' if best is None else self._describe(best),
            seconds_left=None if left is None else seconds_left(trials, running, left, now),
            is_to_pause=study.pause_requested,
        )

    def _newly_ended(self, trials: Sequence[Trial]) -> list[Trial]:
        """Returns the trials that have ended since the read before, in that order."""
        is_first, before, newest = self._unended is None, self._unended or set(), self._newest
        self._unended = {trial.id for trial in trials if not trial.is_terminal}
        self._newest = max((trial.id for trial in trials), default=0)
        if is_first:
            return []
        fresh = [
            each for each in trials if each.is_terminal and (each.id in before or each.id > newest)
        ]
        return sorted(fresh, key=lambda trial: (trial.record.ended or trial.created, trial.id))

    def _ended_line(self, trial: Trial) -> str:
        named = zip(self._reward_names, trial.rewards, strict=False)
        parts = [str(trial.status), *(f'{name}={reward:.5g}' for name, reward in named)]
        text = f'trial {trial.id}: {", ".join(parts)}'
        if decisions := self._describe(trial):
            text += f' ({decisions})'
        return text + (f': {trial.reason}' if trial.reason else '')

    def _running(self, trial: Trial, compiles: bool) -> Running:
        record, last = trial.record, trial.measurements[-1] if trial.measurements else None
        # Steps of attempts that resumed from a checkpoint.
        resumed = [event.step for event in record.history if event.step is not None]
        training = self._training(trial)
        begun = [training['step']] if training else []
        step = max([0 if last is None else last.step, *resumed[-1:], *begun])
        observed = self._observe(trial, step, training)
        claims = [event.time for event in record.history if event.event == 'claimed']
        moments = [event.time for event in record.history[-1:]]
        moments += [] if observed.changed is None else [observed.changed]
        curve = tuple(each.rewards[0] for each in trial.measurements if each.rewards)
        state = 'paused' if trial.is_paused else 'starting' if compiles and not step else 'running'
        return Running(
            number=trial.id,
            state=state if record.holder or trial.is_paused else 'waiting',
            worker=record.holder,
            attempt=trial.attempt,
            step=step,
            rewards=() if last is None else last.rewards,
            curve=curve or tuple(observed.losses),
            speed=training.get(SPEED, observed.speed),
            event=record.history[-1].event if record.history else '',
            decisions=self._describe(trial),
            training=training,
            began=claims[-1] if claims else None,
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
            if observed.first_step == 0:  # The time to the first step is that of compilation.
                observed.first_step, observed.first_time = step, now
            observed.step, observed.last_time = step, now
            observed.changed = datetime.datetime.now(datetime.UTC)
            observed.losses += [training[LOSS]] if LOSS in training else []
            del observed.losses[:-_CURVE]
        return observed

    def _training(self, trial: Trial) -> Mapping[str, Any]:
        noted = self._steps.get(trial.id)
        if noted is not None or self._directory is None:
            return noted or {}
        key = trial.id, trial.attempt
        if key not in self._metrics:
            attempt = f'attempt_{trial.attempt}/' if trial.attempt > 1 else ''
            # Its directory is named by its decisions, which only the classes can read.
            names = self._directory.glob(f'{TRIALS}/{trial.id:04d}-*/{attempt}{METRICS}')
            if (path := next(iter(names), None)) is None:
                return {}
            self._metrics[key] = path
        return last_training_record(self._metrics[key]) or {}

    def _forget(self, trials: Sequence[Trial]) -> None:
        """Drops what is known of trials that have ended."""
        ended = {trial.id for trial in trials if trial.is_terminal}
        for number in ended & {*self._observed, *list(self._steps)}:
            self._observed.pop(number, None)
            self._steps.pop(number, None)
        self._metrics = {key: path for key, path in self._metrics.items() if key[0] not in ended}


def last_events(trials: Sequence[Trial], count: int = _EVENTS) -> list[TrialEvent]:
    """Returns the last events of all trials, in order of time."""
    events = (
        TrialEvent(event.time, trial.id, event.event, event.detail)
        for trial in trials
        for event in trial.record.history[-count:]
    )
    newest = heapq.nlargest(count, events, key=lambda event: (event.time, event.trial))
    return newest[::-1]


def seconds_left(
    trials: Sequence[Trial], running: Sequence[Running], left: int, now: datetime.datetime
) -> float | None:
    """Estimates the time that a study still needs, from the times of its last trials.

    Args:
        left: the number of trials that have not ended.

    Returns:
        Seconds; None where no trial that ran here has ended, or none runs.
    """
    own = [each for each in trials if each.is_terminal and not each.lineage.is_imported]
    recent = heapq.nlargest(_TIMED_TRIALS, own, key=lambda each: (each.completed or now, each.id))
    active = [each for each in running if each.worker]
    if not recent or not active or left <= 0:
        return None
    mean = statistics.fmean(each.seconds + each.record.suggest_seconds for each in recent)
    # Clocks of two machines may differ.
    done = sum(
        min(mean, max(0.0, (now - each.began).total_seconds())) for each in active if each.began
    )
    return max(0.0, left * mean - done) / min(left, len(active))
