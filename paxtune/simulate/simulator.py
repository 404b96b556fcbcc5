"""Studies on a table of recorded curves: the queue of a real study on a virtual clock."""

import dataclasses
import datetime
import heapq
import itertools
from collections.abc import Sequence

from paxtune.algorithms import Algorithm
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.measurement import Measurement
from paxtune.schedulers import Pause, Scheduler
from paxtune.schedulers.base import Unit
from paxtune.schedulers.resources import METRICS
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.parameters import reader
from paxtune.simulate.result import Progress, Run, SimulatedTrial
from paxtune.simulate.table import CurveTable, Row
from paxtune.simulate.virtual_store import VirtualStore
from paxtune.study import transitions
from paxtune.study.feasibility import Feasibility
from paxtune.study.record import Status, TrialRecord
from paxtune.study.running_trial import RunningTrial
from paxtune.study.scheduling import TrialScheduling
from paxtune.study.suggester import Suggester
from paxtune.study.trial import Scoring, Trial, TrialContext
from paxtune.study.trial_queue import TrialQueue
from trainer.symbolic.errors import UserError


def simulate(
    table: CurveTable,
    scheduler: Scheduler | None,
    algorithm: Algorithm,
    *,
    num_trials: int,
    workers: int = 1,
    seed: int = 0,
    target: float | None = None,
) -> Run:
    """Runs a study on recorded curves. The same arguments give the same run.

    Workers take trials from the queue of a real study. A waiting worker asks again after each
    measurement.

    Training takes as long as it took, or a unit of time for each step where the table has no
    seconds. Compilation, evaluation and saving take no time.

    A promoted trial continues from its pause. The decisions in a table are constant. So a forked
    trial has its parent's measurement at the step of the fork, and from there on the curve of the
    row next to its own decisions.

    Args:
        scheduler: decides how far trials are trained; None trains all to their ends.
        num_trials: the number of trials, forked ones included.
        workers: the number of trials that run at once.
        target: the reward at whose first completion the run ends; None runs all trials.

    Raises:
        UserError: the table lacks the scheduler's unit, or has too few rows.
    """
    require_rows(table, scheduler, num_trials)
    search = Search(table.reward, Budget(num_trials), algorithm, scheduler, seed)
    return _Study(table, search, scheduler, target).run(workers)


def require_rows(table: CurveTable, scheduler: Scheduler | None, num_trials: int) -> None:
    """Raises UserError unless a table has the scheduler's unit, and enough rows."""
    unit: Unit = 'steps' if scheduler is None else scheduler.unit
    if unit not in table.units:
        raise UserError(
            f'the scheduler counts resources in {unit}, which were not measured for all trials '
            f'of the table: it has {", ".join(table.units)}'
        )
    if num_trials > len(table.rows):
        raise UserError(
            f'{num_trials} trials cannot be simulated: the table has {len(table.rows)} of them'
        )


@dataclasses.dataclass
class _Training:
    """The simulated training of a trial. Evaluations before its fork count."""

    row: int
    recorded: Row
    clock: Sequence[float]  # The time of each evaluation, from the first step.
    used: Sequence[float]  # The resource at each evaluation.
    max_resource: float | None  # At its end; None if unknown.
    past: int = 0  # Evaluations that have passed.
    began_at: int = 0  # The same when it began, or went on, last.
    began: float = 0.0
    cost: float = 0.0  # Until it left its worker last.

    def at(self, past: int) -> float:
        """The time of an evaluation, counted from the first step."""
        return self.clock[past - 1] if past else 0.0


class _Feasibility(Feasibility):
    """The feasibility in a simulated study: its table has a row for any decisions."""

    def why_infeasible(self, decisions: Decisions) -> None:
        return None


class _Study:
    def __init__(
        self,
        table: CurveTable,
        search: Search,
        scheduler: Scheduler | None,
        target: float | None,
    ) -> None:
        self.table, self.target, self.answers = table, target, table.start()
        self.unit: Unit = 'steps' if scheduler is None else scheduler.unit
        self.most = max(row.resources[self.unit][-1] for row in table.rows if row.end is not None)
        self.training: dict[int, _Training] = {}
        self.is_over = False
        self.progress: list[Progress] = []
        self._best: float | None = None
        # The cost of trials that left their workers; of the running ones, the sum of their starts.
        self._paid = self._starts = 0.0
        self._num_running = 0
        self._events: list[tuple[float, int, int]] = []
        self._order = itertools.count()
        self._read_parameters = reader(table.spec)
        context = TrialContext([table.reward.score(1.0)], read_parameters=self._read_parameters)
        self.store = VirtualStore(context, self._prepare)
        self.scheduling: TrialScheduling | None = None
        if scheduler is not None:
            self.scheduling = TrialScheduling(
                scheduler,
                [table.reward],
                table.spec,
                lambda trial: self.training[trial.id].max_resource,
            )
        self._context = context
        self._scoring = Scoring([table.reward], search.metric_aggregation, [], [])
        self.queue = TrialQueue(
            table.space,
            search,
            self.store,
            Suggester(_Feasibility(table.space, search), [], self.store.read),
            self.scheduling,
            self.store.read,
            self.open,
        )

    def run(self, workers: int) -> Run:
        """Runs until nothing runs and nothing can begin."""
        self._begin_all(workers)
        while self._events and not self.is_over:
            self.store.seconds, _, id_ = heapq.heappop(self._events)
            if self._evaluated(id_):
                self._schedule(id_)
            if self._num_running < workers and not self.is_over:
                self._begin_all(workers)
        trials = [self._simulated(trial) for trial in self.store.read()]
        return Run(self.table, trials, self.progress, self._compute, self.now)

    def open(self, record: TrialRecord) -> RunningTrial:
        return RunningTrial(record, self._context, self._scoring, self.store)

    @property
    def now(self) -> float:
        return self.store.seconds

    def _simulated(self, trial: Trial) -> SimulatedTrial:
        training = self.training[trial.id]
        running = self.now - training.began if trial.status is Status.ACTIVE else 0.0
        return SimulatedTrial(trial, training.row, training.cost + running)

    @property
    def _compute(self) -> float:
        return self._paid + self._num_running * self.now - self._starts

    # --- Running trials ---

    def _begin_all(self, workers: int) -> None:
        while self._num_running < workers and (trial := self.queue.take()) is not None:
            self._begin(trial.id)

    def _begin(self, id_: int) -> None:
        training = self.training[id_]
        training.began, training.began_at = self.now, training.past
        self._starts += self.now
        self._num_running += 1
        # A run that begins at an evaluation repeats it, with another decision.
        if not self.store.trials[id_].measurements or self._goes_on(id_):
            self._schedule(id_)

    def _schedule(self, id_: int) -> None:
        training = self.training[id_]
        # Without a scheduler only ends are events.
        past = len(training.clock) if self.scheduling is None else training.past + 1
        then = training.began + training.at(past) - training.at(training.began_at)
        heapq.heappush(self._events, (then, next(self._order), id_))

    def _evaluated(self, id_: int) -> bool:
        """Passes the next evaluation of a trial. Returns True if the trial goes on."""
        training = self.training[id_]
        row, end = training.recorded, len(training.clock)
        past = end if self.scheduling is None else training.past + 1
        passed = range(training.past, min(past, len(row.measurements)))

        def report(record: TrialRecord, _: datetime.datetime) -> TrialRecord:
            for index in passed:
                record = transitions.report(record, self._measurement(training, index), ())
            return record

        reported = self.store.apply(id_, report)
        training.past = past
        if past < end:
            return self._goes_on(id_)
        self._leave(id_)
        if row.end is None:
            self.open(reported).fail('it diverged, as was recorded')
        else:
            last_step = max((each.step for each in reported.measurements), default=0)
            self.open(reported).finish(Measurement(last_step, {}, (row.end,)))
            self._completed(row.end)
        return False

    def _measurement(self, training: _Training, index: int) -> Measurement:
        measured = training.recorded.measurements[index]
        if self.unit == 'steps':
            return measured
        used = {METRICS[self.unit]: training.used[index]}
        return dataclasses.replace(measured, metrics={**measured.metrics, **used})

    def _goes_on(self, id_: int) -> bool:
        if self.scheduling is None:
            return True
        trial = self.store.trials[id_]
        step = trial.measurements[-1].step
        decision = self.scheduling.decide_on(trial, step, list(self.store.trials.values()))
        if decision is None:
            return True
        running = self.open(trial.record)
        if isinstance(decision, Pause):
            running.pause(step, decision.reason)
        else:
            running.end_early(decision.reason)
        self._leave(id_)
        return False

    def _leave(self, id_: int) -> None:
        training = self.training[id_]
        took = self.now - training.began
        training.cost += took
        self._paid += took
        self._starts -= training.began
        self._num_running -= 1

    def _completed(self, reward: float) -> None:
        score = self.table.reward.score
        if self._best is None or score(reward) > score(self._best):
            self._best = reward
            self.progress.append(Progress(self.now, self._compute, reward))
        if self.target is not None and score(reward) >= score(self.target):
            self.is_over = True

    # --- New trials ---

    def _prepare(self, record: TrialRecord) -> TrialRecord:
        """Assigns a row to a new trial. A fork has its parent's measurement."""
        fork, decisions = record.lineage.forked_from, self._read_parameters(record.parameters)
        try:
            row = self.answers.take(decisions, after=None if fork is None else fork[1])
        except LookupError:
            raise UserError(
                'the table has not enough rows for the trials that the scheduler forks'
            ) from None
        recorded = self.table.rows[row]
        used, clock = recorded.resources[self.unit], recorded.resources[self.table.unit]
        end = used[-1] if recorded.end is not None else self.most
        max_resource = None if self.unit == 'seconds' else end
        training = _Training(row, recorded, clock, used, max_resource)
        self.training[record.id] = training
        if fork is None:
            return record
        return dataclasses.replace(record, measurements=(self._take_over(training, *fork),))

    def _take_over(self, training: _Training, parent: int, step: int) -> Measurement:
        """Begins a training where another one was at a step. Returns the measurement there."""
        begun = self.store.trials[parent].measurements
        measured = next(each for each in begun if each.step == step)
        training.past = sum(each <= step for each in training.recorded.resources['steps'])
        if self.unit != 'steps':
            there = measured.metrics[METRICS[self.unit]]
            before = training.used[training.past - 1] if training.past else 0.0
            training.used = [there + each - before for each in training.used]
            training.max_resource = None if self.unit == 'seconds' else training.used[-1]
        return measured
