"""A study: suggests trials, and records their results."""

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, overload

from paxtune.algorithms import Suggestion
from paxtune.objectives.rewards import NonFiniteRewardError
from paxtune.schedulers import Pause, Stop, TrialCurve
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.parameters import to_parameters
from paxtune.study import notes, replicates, stop_requests, transfer
from paxtune.study.checkpoint_retention import require_weights
from paxtune.study.known_values import for_algorithm, given_values
from paxtune.study.plan import SearchPlan
from paxtune.study.record import RETRY, Lineage, StudyRecord, TrialRecord
from paxtune.study.record_checks import DamagedRecordError
from paxtune.study.running_trial import RunningTrial
from paxtune.study.schedule import Action
from paxtune.study.scheduling import TrialScheduling, max_resource
from paxtune.study.store import StudyStore
from paxtune.study.study_view import StudyView
from paxtune.study.suggester import Suggester
from paxtune.study.trial import Scoring, Trial
from paxtune.study.trial_queue import UNLIMITED, TrialQueue
from paxtune.study.trial_table import Trials
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError


@dataclasses.dataclass(frozen=True)
class Poll:
    """Requests of a study to a trial that has reported, as of one reading.

    Attributes:
        trials: all of the study; empty if neither the budget nor the scheduler needs them.
        stop: the reason why the trial must end now; None if it continues.
        pause: the decision of the scheduler to pause the trial.
        is_study_pausing: whether a pause of the whole study was requested.
    """

    trials: Trials
    stop: str | None = None
    pause: Pause | None = None
    is_study_pausing: bool = False


class Study(StudyView):
    """A study that can be changed: a Vizier study, in `<directory>/study.db` or in memory.

    Attributes:
        suggester: makes new trials.

    Example:
        >>> import pyglove as pg
        >>> from paxtune import Budget, MetricReward, Search, open_study
        >>> space = pg.Dict(x=pg.floatv(-1.0, 1.0))
        >>> search = Search(MetricReward('minimize', 'y'), Budget(5))
        >>> study = open_study(None, space, search=search)
        >>> while (trial := study.ask()) is not None:
        ...     study.tell(trial, {'y': trial.materialize().x ** 2})
        >>> study.best.reward < 0.1
        True
        >>> study.close()
    """

    def __init__(
        self,
        directory: JobPath | None,
        plan: SearchPlan,
        record: StudyRecord,
        store: StudyStore,
    ) -> None:
        """Not called directly: see `paxtune.storage.open_study`."""
        super().__init__(directory, plan, store)
        space, search = plan.space, plan.search
        known = given_values(space, search) if record.known is None else record.known
        self.suggester = Suggester(
            plan.feasibility,
            transfer.observations_of(record.priors),
            lambda: self.current,
            for_algorithm(known),
        )
        self._scheduling: TrialScheduling | None = None
        if (scheduler := self.scheduler) is not None:
            self._scheduling = TrialScheduling(
                scheduler,
                self.rewards,
                space.spec,
                lambda trial: max_resource(self, trial, scheduler.unit),
            )
        self._scoring = Scoring(
            self.rewards, search.metric_aggregation, search.limits, space.sub_experiments
        )
        self._queue = TrialQueue(
            space, search, store, self.suggester, self._scheduling, lambda: self.current, self._open
        )

    def _open(self, record: TrialRecord) -> RunningTrial:
        return RunningTrial(record, self.context, self._scoring, self.store)

    @property
    def num_trials(self) -> int | None:
        """The number of trials that the study is to have; None if only hours limit it."""
        number = self._queue.num_trials
        return None if number == UNLIMITED else number

    @property
    def exhausted(self) -> bool:
        """Returns True if every point of the space was tried."""
        return self._queue.is_exhausted(self.current)

    @property
    def is_done(self) -> bool:
        """Returns True if the study needs no more trials: see `done_reason`."""
        return self.done_reason is not None

    @property
    def done_reason(self) -> str | None:
        """Why the study needs no more trials; None while it does."""
        return self._queue.done_reason(self.current)

    def next_action(self) -> Action:
        """Returns the next action after the waiting and running trials; changes nothing."""
        return self._queue.next_action(self.current)

    @overload
    def ask(self) -> RunningTrial | None: ...
    @overload
    def ask(self, count: int) -> list[RunningTrial]: ...
    def ask(self, count: int | None = None) -> RunningTrial | list[RunningTrial] | None:
        """Returns the next trial to run; or a list of the next ones, at most `count`.

        A trial whose process has not finished it comes first, marked as `resumed`. Then come trials
        that the scheduler promotes or forks, then added ones, then a new one, from all results so
        far. No trial is handed out twice while the study that has it is open.

        Returns:
            The trial; None when the study is done, or must wait for other trials.

        Raises:
            SuggestionError: the algorithm raised.
            UserError: nothing in the space satisfies its constraints.
        """
        if count is None:
            return self._queue.take()
        asked = (self._queue.take() for _ in range(count))
        return [trial for trial in itertools.takewhile(bool, asked) if trial is not None]

    def open_trial(self, number: int) -> RunningTrial:
        """Returns a trial that can be changed; raises UserError if no trial has this number."""
        return self._open(self.trial(number).record)

    def start(self, decisions: Decisions, memo: Mapping[str, str]) -> RunningTrial:
        """Adds an ACTIVE trial of another algorithm, with the state that it keeps there."""
        return self._queue.start(Suggestion(decisions, algorithm_state=memo))

    def _request(self, decisions: Decisions, lineage: Lineage) -> RunningTrial:
        record = TrialRecord(to_parameters(self.space.spec, decisions), lineage=lineage)
        return self._open(self.store.add_trials([record])[0])

    def add(self, decisions: Mapping[str, Any], *, warm_start: int | None = None) -> RunningTrial:
        """Adds a trial with given decisions, which runs before new suggestions.

        Args:
            decisions: {path: value}, as `Trial.decisions`; missing ones are drawn at random.
            warm_start: the trial whose weights it begins with.

        Raises:
            UserError: the decisions are not in the space, or are infeasible.
        """
        return self._add_completed(decisions, Lineage(origin='added', warm_start=warm_start))

    def _add_completed(self, decisions: Mapping[str, Any], lineage: Lineage) -> RunningTrial:
        drawn = self.suggester.completed(decisions, self.store.max_id() + 1)
        if lineage.retry_of is not None:
            self.trial(lineage.retry_of)
        if lineage.warm_start is not None:
            source = self.trial(lineage.warm_start)
            if not source.is_terminal or source.lineage.is_imported:
                raise UserError(
                    f'trial {source.id} has no weights here that another can begin with'
                )
            require_weights(self, source)
        return self._request(drawn, lineage)

    def retry(self, number: int) -> RunningTrial:
        """Repeats an ended trial, with its decisions and seeds; raises UserError for another."""
        old = self.trial(number)
        if not old.is_terminal:
            raise UserError(
                f'trial {number} is {old.state}: only one that has ended can be retried'
            )
        lineage = Lineage(
            origin=RETRY,
            retry_of=number,
            parent=old.lineage.parent,
            warm_start=old.lineage.warm_start,
            replicate=old.lineage.replicate,
            replicate_of=old.lineage.replicate_of_here if old.lineage.replicate > 1 else None,
        )
        return self._add_completed(old.decisions, lineage)

    def confirm(self, count: int = 5, times: int = 3) -> list[RunningTrial]:
        """Adds replicates of the best configurations, which run before new suggestions.

        Args:
            count: how many configurations; with several objectives the whole front.
            times: the number of trials that each is to have.

        Returns:
            The trials that were added; none where each configuration has that many.

        Raises:
            UserError: there is no reward, nothing was completed, or weights are gone that a trial
                would begin with.
        """
        if not self.rewards:
            raise UserError('no reward says which trials are the best: there is none to confirm')
        best = self.winners(count)
        if not best:
            raise UserError(f'no trial of {self.directory or "the study"} was completed')
        missing = [each for entry in best for each in entry.configuration.missing(times)]
        for first, _ in missing:
            if first.lineage.warm_start is not None:
                require_weights(self, self.trial(first.lineage.warm_start))
        return [
            self._request(first.by_id, replicates.lineage_of(first, replicate))
            for first, replicate in missing
        ]

    def tell(
        self,
        trial: RunningTrial,
        metrics: Mapping[str, float] | float | None = None,
        *,
        infeasible: str | None = None,
    ) -> None:
        """Finishes a trial that `ask` has handed out.

        A reward that is NaN or infinite makes the trial infeasible.

        Args:
            metrics: final measurements; a number is the metric of the reward, where there is one.
                None if the trial has reported everything.
            infeasible: why no reward belongs to its decisions.

        Raises:
            UserError: a metric is no number.
            IllegalTransition: the trial has ended already, or nothing was measured.
            MissingMetricError: a metric that the reward needs is missing.
        """
        if infeasible is not None:
            trial.fail(infeasible)
            return
        if metrics is not None and not isinstance(metrics, Mapping):
            metrics = {metric.name: metrics for reward in self.rewards for metric in reward.metrics}
        try:
            if metrics is not None:
                last = max((each.step for each in trial.view.measurements), default=0)
                trial.report(last + 1, metrics)
            trial.complete()
        except NonFiniteRewardError as error:
            trial.fail(str(error))

    def decide(self, trial: RunningTrial) -> Stop | Pause | None:
        """Asks the scheduler about a trial at the step that it reported last.

        Returns:
            The decision, with the reason for `RunningTrial.stop` or `RunningTrial.pause`; None if
            the trial goes on.
        """
        return None if self._scheduling is None else self._decide(trial, self.current)

    def _decide(self, trial: RunningTrial, trials: Sequence[Trial]) -> Stop | Pause | None:
        if self._scheduling is None:
            return None
        return self._scheduling.decide_on(trial.view, trial.step, trials)

    def poll(self, trial: RunningTrial, *, may_decide: bool = True) -> Poll:
        """Reads once all requests to a trial that has reported.

        Args:
            may_decide: whether the scheduler decides about the trial, too.
        """
        record, may_decide = self.record, may_decide and self._scheduling is not None
        trials = self.current if may_decide or self.search.budget.has_hours else Trials([], [])
        if trial.id in record.stop_requests:
            return Poll(trials, stop='stopped by request')
        decision = self._decide(trial, trials) if may_decide else None
        if isinstance(decision, Stop):
            return Poll(trials, stop=decision.reason)
        return Poll(trials, pause=decision, is_study_pausing=record.pause_requested)

    def curves(self) -> list[TrialCurve]:
        """Returns the curves that the scheduler sees, none infeasible; ValueError without one."""
        if self._scheduling is None:
            raise ValueError('the study has no scheduler')
        return self._scheduling.curves(self.current)

    def set_metadata(self, values: Mapping[str, str]) -> None:
        """Adds to the metadata of the study."""
        self.store.update_study(
            lambda study: dataclasses.replace(study, metadata={**study.metadata, **values})
        )

    def delete_trial(self, number: int) -> None:
        """Deletes a trial from the study, in any state, also a damaged one. Its directory stays.

        Raises:
            UserError: there is no such trial.
        """
        with contextlib.suppress(DamagedRecordError):
            self.trial(number)
        self.store.delete_trial(number)
        stop_requests.forget(self.store, number)
        notes.forget(self.store, number)
        self._table.forget(number)
