"""The trials that a study hands out to this process: waiting ones, promoted ones, new ones."""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from paxtune.algorithms import Exhausted, Suggestion
from paxtune.config.search import Search
from paxtune.schedulers import Fork, Promote
from paxtune.search_space.parameters import to_parameters
from paxtune.search_space.space import Space
from paxtune.study import schedule, stopping_criteria, transitions
from paxtune.study.invariants import InvariantError
from paxtune.study.record import SCHEDULER, Lineage, Status, TrialRecord
from paxtune.study.running_trial import RunningTrial
from paxtune.study.schedule import Action, Claim, Decision, Done, Suggest, View
from paxtune.study.scheduling import TrialScheduling
from paxtune.study.store import AddSuggested, TrialStore
from paxtune.study.suggester import Suggester
from paxtune.study.transitions import IllegalTransition, TurnLostError
from paxtune.study.trial import Trial
from paxtune.study.trial_table import Trials, column
from trainer.symbolic.errors import UserError

UNLIMITED = sys.maxsize
"""The number of trials of a study that only hours limit."""


class TrialQueue:
    """Hands out the trials of a study to this process, and knows when there are no more."""

    def __init__(
        self,
        space: Space,
        search: Search,
        store: TrialStore,
        suggester: Suggester,
        scheduling: TrialScheduling | None,
        read_trials: Callable[[], Trials],
        open_trial: Callable[[TrialRecord], RunningTrial],
    ) -> None:
        """Suggests nothing yet; `scheduling` is None if the search has no scheduler."""
        self._space, self._search, self._store = space, search, store
        self._suggester, self._scheduling = suggester, scheduling
        self._read_trials, self._open_trial = read_trials, open_trial
        self._lock = threading.Lock()
        rewards = search.rewards
        self._sign = rewards[0].score(1.0) if rewards else 1.0
        self._viewed: tuple[Trials, tuple[object, ...], View] | None = None
        study = store.study()
        self._exhausted_at = None if study is None else study.exhausted

    @property
    def num_trials(self) -> int:
        """The number of trials that the study is to have, at most."""
        wanted, size = self._search.budget.trials, self._space.size
        if wanted is not None:
            return wanted
        return UNLIMITED if size is None else size * self._search.replicates

    @property
    def _budget(self) -> tuple[object, ...]:
        budget = self._search.budget
        return budget.trials, budget.hours, budget.device_hours, budget.target_reward

    def take(self) -> RunningTrial | None:
        """Returns the next trial to run; None if there is none now: see `Study.ask`."""
        with self._lock:
            return self._take()

    def start(self, suggestion: Suggestion) -> RunningTrial:
        """Adds an ACTIVE trial that another algorithm has suggested. Its decisions may repeat."""
        with self._lock, self._store.turn() as add:
            return self._handed_out(self._added(add, suggestion, id=self._store.max_id() + 1))

    def done_reason(self, trials: Trials) -> str | None:
        """Says why the study needs no more trials than these; None while it does."""
        return schedule.done_reason(self._view(trials))

    def next_action(self, trials: Trials) -> Action:
        """Returns the next action after the waiting and running trials, without executing it."""
        return schedule.next_action(self._view(trials, may_claim=False))

    def is_exhausted(self, trials: Sequence[Trial]) -> bool:
        """Returns True if these trials have tried every point of the space."""
        has_all = schedule.is_exhausted(
            len(trials), lambda: num_tried(trials), self._space.size, self._exhausted_at
        )
        return has_all and self._suggester.replicate_due(trials) is None

    def _view(self, trials: Trials, may_claim: bool = True) -> View:
        """Views the study. The same list is viewed once: nothing has changed since."""
        if (viewed := self._viewed) is not None:  # Another thread may drop it meanwhile.
            seen, budget, view = viewed
            if seen is trials and budget == self._budget and view.may_claim == may_claim:
                return view
        is_exhausted = self.is_exhausted(trials)
        view = View(
            count=len(trials),
            unended=[trial.record for trial in trials.unended],
            num_trials=self.num_trials,
            is_exhausted=is_exhausted,
            budget_used=stopping_criteria.used_up(
                self._search.budget, trials, self._sign, self._search.replicates
            ),
            decide=lambda: self._decide(trials, is_exhausted),
            has_holders=self._store.is_shared,
            is_alive=self._store.is_alive,
            may_claim=may_claim,
        )
        self._viewed = (trials, self._budget, view)
        return view

    def _decide(self, trials: Trials, is_exhausted: bool) -> Decision:
        if self._scheduling is None:
            return None
        has_room = len(trials) < self.num_trials and not is_exhausted
        context = self._suggester.context(trials.newest + 1)
        return self._scheduling.decide(trials, context, has_room)

    def _take(self) -> RunningTrial | None:
        trials, may_claim = self._read_trials(), True
        while True:
            action = schedule.next_action(self._view(trials, may_claim))
            if isinstance(action, Done):
                self._end_paused(trials)
                return None
            if isinstance(action, Promote | Fork):
                self._promote_or_fork()
            elif isinstance(action, Claim):
                claimed = self._store.claim([each.id for each in trials.unended])
                if claimed is not None:
                    return self._handed_out(claimed)
                may_claim = False
                continue
            elif isinstance(action, Suggest):
                with contextlib.suppress(TurnLostError), self._store.turn() as add:
                    trial = self._suggest(add)
                    if trial is not None:
                        return self._handed_out(trial)
            else:
                return None
            trials, may_claim = self._read_trials(), True

    def _handed_out(self, record: TrialRecord) -> RunningTrial:
        if (record.status, record.holder) != (Status.ACTIVE, self._store.worker):
            state = f'it is {record.status}, held by {record.holder or "no worker"}'
            raise InvariantError(f'trial {record.id}: {state}. This is a defect of paxtune')
        return self._open_trial(record)

    def _promote_or_fork(self) -> None:
        """Executes the decision of the scheduler once this worker has the suggest lock."""
        with contextlib.suppress(TurnLostError), self._store.turn() as add:
            self._end_replaced(self._read_trials())
            trials = self._read_trials()
            action = self._view(trials).decision
            if isinstance(action, Promote):
                # A restart of the service releases the lock: another worker may have been faster,
                # and paused the trial again. Only the pause that was read here may end.
                (seen,) = (each.record for each in trials if each.id == action.trial)
                with contextlib.suppress(IllegalTransition):
                    self._open_trial(seen).promote(action.reason)
            elif isinstance(action, Fork):
                # A kill in between leaves a replaced trial that has not ended: see `_end_replaced`.
                add(self._forked(action))
                self._end_replaced(self._read_trials())

    def _forked(self, fork: Fork) -> TrialRecord:
        lineage = Lineage(
            origin=SCHEDULER,
            parent=fork.trial,
            forked_from=(fork.trial, fork.step),
            replaces=fork.replaces,
        )
        parameters = to_parameters(self._space.spec, fork.decisions)
        return TrialRecord(parameters, id=self._store.max_id() + 1, lineage=lineage)

    def _end_paused(self, trials: Sequence[Trial]) -> None:
        """Ends paused trials, unless only hours are used up: the study may get more."""
        if self._scheduling is None or stopping_criteria.hours_used_up(self._search.budget, trials):
            return
        self._end_replaced(trials)
        for trial in self._read_trials():
            if trial.status is Status.PAUSED:
                self._end(trial, f'not promoted from step {trial.record.paused_at}')

    def _end_replaced(self, trials: Sequence[Trial]) -> None:
        takers = {trial.lineage.replaces: trial.id for trial in trials}
        for trial in trials:
            if trial.status is Status.PAUSED and trial.id in takers:
                self._end(trial, f'replaced by trial {takers[trial.id]}')

    def _end(self, trial: Trial, reason: str) -> None:
        # Other workers may do the same.
        with contextlib.suppress(IllegalTransition):
            self._open_trial(trial.record).end_early(reason)

    def _suggest(self, add: AddSuggested) -> TrialRecord | None:
        """Adds a new trial; raises TurnLostError if another worker's action comes first now."""
        trials = self._read_trials()
        view = self._view(trials)
        if schedule.done_reason(view) is not None or len(trials) >= self.num_trials:
            return None
        is_requested = any(each.status is Status.REQUESTED for each in view.unended)
        if view.decision is not None or is_requested:
            raise TurnLostError('another action comes first')
        number = trials.newest + 1
        began = time.monotonic()
        try:
            suggestion, lineage = self._suggester.next(number)
        except Exhausted:
            self._note_exhausted(len(trials))
            return None
        seconds = round(time.monotonic() - began, 6) if lineage.origin == 'algorithm' else 0.0
        return self._added(add, suggestion, id=number, lineage=lineage, suggest_seconds=seconds)

    def _added(self, add: AddSuggested, suggestion: Suggestion, **fields: Any) -> TrialRecord:
        parameters = to_parameters(self._space.spec, suggestion.decisions)
        record = TrialRecord(parameters, memo=suggestion.algorithm_state, **fields)
        return add(transitions.claim(record, self._store.worker, self._store.now()))

    def _note_exhausted(self, num_trials: int) -> None:
        if not num_trials and (reason := self._suggester.feasibility.commonest_reason):
            raise UserError(f'nothing in the search space is feasible: {reason}') from None
        self._store.update_study(lambda study: dataclasses.replace(study, exhausted=num_trials))
        self._exhausted_at, self._viewed = num_trials, None


def num_tried(trials: Sequence[Trial]) -> int:
    """Counts the different experiments of trials."""
    return len(set(column(trials, _parameters)))


def _parameters(trial: Trial) -> tuple[tuple[str, str | float], ...]:
    return tuple(trial.record.parameters.items())
