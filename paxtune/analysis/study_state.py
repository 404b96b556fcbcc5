"""A study at one moment, as lists, live views and the page show it. Pure functions of records."""

import collections
import dataclasses
import datetime
import functools
import hashlib
import heapq
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from paxtune.config.budget import Budget
from paxtune.schedulers import Promote
from paxtune.search_space.decisions import size, spec_from_json
from paxtune.study import replicates, schedule, stopping_criteria
from paxtune.study.record import Event, Status, StudyRecord, TrialRecord
from paxtune.study.replicates import LeaderboardEntry
from paxtune.study.trial import Trial, TrialContext
from paxtune.study.trial_queue import num_tried
from paxtune.study.trial_table import column

_IDLE_SECONDS = 30.0  # Between two trials, a worker waits for the next decisions.
_MAX_RECENT = 200  # The last trials, among which ones have just ended.
_MAX_TIMED_TRIALS = 20  # The last ones: later trials of a search are often larger.


@dataclasses.dataclass(frozen=True)
class TrialProgress:
    """A trial that has begun and not ended.

    Attributes:
        trial: the trial.
        state: 'starting', 'running', 'paused', or 'waiting' for a worker.
        step: the last step that is known.
        curve: its rewards so far; before the first of them its training losses.
        speed: in steps per second; None if unknown.
        training: the last record of training.
        since: the time of the last event, or of the last observed step; None if unknown.
    """

    trial: Trial
    state: str
    step: int
    curve: tuple[float, ...] = ()
    speed: float | None = None
    training: Mapping[str, float] = dataclasses.field(default_factory=dict)
    since: datetime.datetime | None = None

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards of the last measurement."""
        measured = self.trial.measurements
        return measured[-1].rewards if measured else ()

    @property
    def event(self) -> str:
        """The kind of the last event; '' without one."""
        history = self.trial.record.history
        return history[-1].event if history else ''

    @property
    def began(self) -> datetime.datetime | None:
        """The time at which this attempt began."""
        history = reversed(self.trial.record.history)
        return next((each.time for each in history if each.event == 'claimed'), None)


@dataclasses.dataclass(frozen=True)
class StudyState:
    """A study at one moment.

    The classes of its experiment may be missing: decisions are not needed.

    Attributes:
        record: the record of the study.
        trials: all of its trials, by id.
        created: the time at which the study was created.
        now: the moment.
        running: the trials that have begun and not ended.
        ended: the trials that have ended since the state before.
    """

    record: StudyRecord
    trials: Sequence[Trial]
    created: datetime.datetime
    now: datetime.datetime
    running: Sequence[TrialProgress] = ()
    ended: Sequence[Trial] = ()

    @functools.cached_property
    def counts(self) -> Mapping[Status, int]:
        """The number of trials by status."""
        return collections.Counter(column(self.trials, _status))

    @property
    def num_ended(self) -> int:
        """The number of trials that have ended."""
        return sum(count for status, count in self.counts.items() if status.has_ended)

    @property
    def num_failed(self) -> int:
        """The number of infeasible trials that ended by an error."""
        return sum(column(self.trials, _is_failed))

    @functools.cached_property
    def _search(self) -> Mapping[str, Any]:
        search: Mapping[str, Any] = json.loads(self.record.search or self.record.value)
        return search if self.record.search else search['search']

    @functools.cached_property
    def _space_size(self) -> int | None:
        return size(spec_from_json(self.record.spec))

    @functools.cached_property
    def num_trials(self) -> int | None:
        """The number of trials that the study is to have; None if that cannot be said."""
        wanted: int | None = self._search['budget']['trials']
        if wanted is not None or self._space_size is None:
            return wanted
        return int(self._space_size * self._search['replicates'])

    @functools.cached_property
    def best(self) -> LeaderboardEntry | None:
        """The best trial with its replicates; None without one, or with several objectives."""
        if len(self.record.goals) != 1:
            return None
        return next(iter(replicates.top(self.trials, self._search['replicates'], 1)), None)

    @functools.cached_property
    def front(self) -> int | None:
        """The number of trials that no other is better than; None with one objective."""
        if len(self.record.goals) <= 1:
            return None
        found = replicates.leaderboard(self.trials, self._search['replicates'])
        return len(replicates.front([each for each in found if each.scores]))

    @functools.cached_property
    def is_done(self) -> bool:
        """Returns True if the study needs no more trials, as `Study.is_done` does."""
        search, signs = self._search, signs_of(self.record)
        limits = {name: each for name, each in search['budget'].items() if name != '_type'}
        sign = signs[0] if signs else 1.0
        used = stopping_criteria.used_up(Budget(**limits), self.trials, sign, search['replicates'])
        # A scheduler, which may be of a missing class, may promote each paused trial.
        promote = Promote(0, '') if self.counts.get(Status.PAUSED) else None
        due = replicates.due(self.trials, search['replicates'])
        records = [trial.record for trial in self.trials]
        tried = schedule.is_exhausted(
            len(records),
            lambda: num_tried(self.trials),
            self._space_size,
            self.record.exhausted,
        )
        view = schedule.View(
            count=len(records),
            unended=[each for each in records if not each.status.has_ended],
            num_trials=sys.maxsize if self.num_trials is None else self.num_trials,
            is_exhausted=due is None and tried,
            budget_used=used,
            decide=lambda: promote,
        )
        return schedule.done_reason(view) is not None

    @property
    def workers(self) -> set[str]:
        """The workers that hold a trial, or have just ended one."""
        recent = [trial.record for trial in self.trials[-_MAX_RECENT:] if trial.record.history]
        just = [
            each.history[-1].worker
            for each in recent
            if each.ended and (self.now - each.ended).total_seconds() < _IDLE_SECONDS
        ]
        return {*just, *(each.trial.record.holder for each in self.running)} - {''}

    def events(self, count: int) -> list[tuple[int, Event]]:
        """Returns the last events of all trials with the trial of each, in order of time."""
        events = (
            (trial.id, event) for trial in self.trials for event in trial.record.history[-count:]
        )
        return heapq.nlargest(count, events, key=lambda pair: (pair[1].time, pair[0]))[::-1]

    @functools.cached_property
    def seconds_left(self) -> float | None:
        """Estimates the time to the end of the study, from the times of its last trials.

        Returns:
            Seconds; None if no trial that ran here has ended, or none runs.
        """
        own = [each for each in self.trials if each.is_terminal and not each.lineage.is_imported]
        recent = heapq.nlargest(
            _MAX_TIMED_TRIALS, own, key=lambda each: (each.completed or self.now, each.id)
        )
        active = [each for each in self.running if each.trial.record.holder]
        left = 0 if self.num_trials is None else self.num_trials - self.num_ended
        if not recent or not active or left <= 0:
            return None
        mean = statistics.fmean(each.seconds + each.record.suggest_seconds for each in recent)
        # Clocks of two machines may differ.
        done = sum(
            min(mean, max(0.0, (self.now - each.began).total_seconds()))
            for each in active
            if each.began
        )
        return max(0.0, left * mean - done) / min(left, len(active))

    @functools.cached_property
    def version(self) -> str:
        """A text that differs between two states in which anything differs that a page shows."""
        unended = [
            (each.id, str(each.status), each.record.holder, each.attempt, len(each.measurements))
            for each in self.trials
            if not each.is_terminal
        ]
        record = self.record
        requests = record.stop_requests, record.pause_requested, record.note
        ids = len(self.trials), sum(trial.id for trial in self.trials)
        content = repr((*ids, unended, requests, sorted(record.notes.items())))
        return hashlib.sha256(content.encode()).hexdigest()


def _status(trial: Trial) -> Status:
    return trial.status


def _is_failed(trial: Trial) -> bool:
    return trial.is_failed


def signs_of(record: StudyRecord) -> list[float]:
    """Returns 1.0 for each maximized reward, and -1.0 for each minimized one."""
    return [1.0 if goal == 'maximize' else -1.0 for goal in record.goals]


def bare_trials(study: StudyRecord, records: Sequence[TrialRecord]) -> list[Trial]:
    """Shows trials without the classes of their experiment: their decisions cannot be read."""
    context = TrialContext(signs_of(study))
    return [Trial(record, context) for record in records]
